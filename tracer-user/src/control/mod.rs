//! What is traced: the typed command set that every front end uses.
