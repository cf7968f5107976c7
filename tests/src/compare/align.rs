//! Aligns two sequences with as few unpaired lines as possible (Myers, "An O(ND) difference algorithm", 1986): a line
//! counts as missing only if no alignment pairs it. Greedy pairing would report many missing lines for one lost hit.
//! Texts such as `softirq_entry: vec=1` repeat, so a line would often pair with the wrong repetition.

/// Maximum number of unpaired lines. With more, the sequences are too different, and [`pairs`] returns no pairs.
const MOST: usize = 4000;

/// The pairs of equal elements, by index, in order. `same` compares an index of the first sequence with one of the
/// second.
pub(super) fn pairs(a_len: usize, b_len: usize, same: impl Fn(usize, usize) -> bool) -> Vec<(usize, usize)> {
    let most = (a_len + b_len).min(MOST);
    // reach[k + most]: the furthest index in `a` on diagonal k (index in a minus index in b).
    let mut reach = vec![0_usize; 2 * most + 3];
    let mut steps: Vec<Vec<usize>> = Vec::new();
    let at = |k: isize| (k + most as isize + 1) as usize;
    for d in 0..=most as isize {
        for k in (-d..=d).step_by(2) {
            let down = k == -d || (k != d && reach[at(k - 1)] < reach[at(k + 1)]);
            let mut x = if down { reach[at(k + 1)] } else { reach[at(k - 1)] + 1 };
            let mut y = (x as isize - k) as usize;
            while x < a_len && y < b_len && same(x, y) {
                x += 1;
                y += 1;
            }
            reach[at(k)] = x;
            if x >= a_len && y >= b_len {
                return back(&steps, d, (a_len, b_len));
            }
        }
        // The starting points of the next round, which `back` needs.
        steps.push(reach[at(-d)..=at(d)].to_vec());
    }
    Vec::new()
}

/// Replaces an element of a pair by an unpaired equal neighbour that is nearer in time. When one side lost a hit, the
/// aligner pairs any of the other side's equal lines, and only the time shows the right one. `apart` is the distance
/// of two elements.
pub(super) fn nearer(
    pairs: &mut [(usize, usize)],
    lengths: (usize, usize),
    same: impl Fn(usize, usize) -> bool,
    apart: impl Fn(usize, usize) -> u64,
) {
    // A lost hit shifts all pairs up to the unpaired element, on either side of it.
    for at in (0..pairs.len()).rev().chain(0..pairs.len()) {
        let before = at.checked_sub(1).map_or((0, 0), |before| (pairs[before].0 + 1, pairs[before].1 + 1));
        let after = pairs.get(at + 1).copied().unwrap_or(lengths);
        let (a, b) = pairs[at];
        let others = (before.0..after.0).map(|a| (a, b)).chain((before.1..after.1).map(|b| (a, b)));
        let like = others.filter(|(a, b)| same(*a, *b));
        pairs[at] = like
            .min_by_key(|(a, b)| apart(*a, *b))
            .filter(|two| apart(two.0, two.1) < apart(a, b))
            .unwrap_or((a, b));
    }
}

/// Walks back from the end through the reach of each round.
fn back(steps: &[Vec<usize>], rounds: isize, end: (usize, usize)) -> Vec<(usize, usize)> {
    let (mut x, mut y) = (end.0 as isize, end.1 as isize);
    let mut pairs = Vec::new();
    for d in (1..=rounds).rev() {
        let before = &steps[(d - 1) as usize];
        let reach = |k: isize| before.get((k + d - 1) as usize).map_or(-1, |x| *x as isize);
        let k = x - y;
        let down = k == -d || (k != d && reach(k - 1) < reach(k + 1));
        let (from_x, from_k) = if down { (reach(k + 1), k + 1) } else { (reach(k - 1), k - 1) };
        let start = if down { from_x } else { from_x + 1 };
        while x > start {
            x -= 1;
            y -= 1;
            pairs.push((x as usize, y as usize));
        }
        (x, y) = (from_x, from_x - from_k);
    }
    while x > 0 {
        x -= 1;
        y -= 1;
        pairs.push((x as usize, y as usize));
    }
    pairs.reverse();
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(a: &str, b: &str) -> String {
        let (a, b) = (a.as_bytes(), b.as_bytes());
        let pairs = pairs(a.len(), b.len(), |x, y| a[x] == b[y]);
        assert!(pairs.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 < two[1].1), "{pairs:?}");
        pairs
            .iter()
            .map(|(x, y)| (char::from(a[*x]), char::from(b[*y])))
            .map(|(x, y)| {
                assert_eq!(x, y);
                x
            })
            .collect()
    }

    /// Length of the longest common subsequence, by the textbook algorithm.
    fn longest(a: &[u8], b: &[u8]) -> usize {
        let mut row = vec![0; b.len() + 1];
        for x in a {
            let mut corner = 0;
            for (at, y) in b.iter().enumerate() {
                let up = row[at + 1];
                row[at + 1] = if x == y { corner + 1 } else { up.max(row[at]) };
                corner = up;
            }
        }
        row[b.len()]
    }

    #[test]
    fn a_lost_hit_does_not_shift_the_others() {
        // The times of hits with equal texts.
        let all = [10_u64, 20, 30, 40, 50];
        for lost in 0..all.len() {
            let ours: Vec<u64> =
                all.iter().enumerate().filter(|(at, _)| *at != lost).map(|(_, time)| time + 1).collect();
            for sides in [[&all[..], &ours[..]], [&ours[..], &all[..]]] {
                let apart = |a: usize, b: usize| sides[0][a].abs_diff(sides[1][b]);
                let lengths = (sides[0].len(), sides[1].len());
                let mut found = pairs(lengths.0, lengths.1, |_, _| true);
                nearer(&mut found, lengths, |_, _| true, apart);
                assert_eq!(found.len(), 4);
                assert!(found.iter().all(|(a, b)| apart(*a, *b) == 1), "{lost} lost: {found:?}");
            }
        }
    }

    #[test]
    fn as_many_lines_as_possible_are_paired() {
        assert_eq!(of("", ""), "");
        assert_eq!(of("abc", ""), "");
        assert_eq!(of("", "abc"), "");
        assert_eq!(of("abc", "abc"), "abc");
        assert_eq!(of("abc", "xyz"), "");
        assert_eq!(of("abcda", "da"), "da");
        assert_eq!(of("abcabba", "cbabac").len(), 4);
        let mut rng = crate::generate::Rng::new(5);
        for _ in 0..2000 {
            let mut text = || -> String {
                let length = rng.below(20);
                (0..length).map(|_| char::from(b'a' + rng.below(4) as u8)).collect()
            };
            let (a, b) = (text(), text());
            assert_eq!(of(&a, &b).len(), longest(a.as_bytes(), b.as_bytes()), "{a} {b}");
        }
    }
}
