//! The mirror's tree without FUSE: directories, inode numbers and open files.

use std::collections::HashSet;

use rustix::io::Errno;
use tracer_tests::tree::{APPEND, READ, TRUNCATE, read, tree, write};

#[test]
fn every_name_leads_to_a_number_of_its_own_and_back() {
    let Some(mut tree) = tree() else { return };
    let root = tree.find("").unwrap();
    let instances = tree.find("instances").unwrap();
    tree.make_dir(instances, "a").unwrap();
    let mut seen = HashSet::from([root]);
    let mut left = vec![(root, root)];
    let mut files = 0;
    while let Some((number, parent)) = left.pop() {
        let all = tree.list(number).unwrap();
        assert_eq!((all[0].0, all[1].0), (number, parent));
        for (child, name, is_dir) in all.into_iter().skip(2) {
            assert!(seen.insert(child), "{name} has a number that was seen before");
            let found = tree.lookup(number, &name).unwrap();
            assert_eq!((found.number, found.is_dir), (child, is_dir), "{name}");
            assert_eq!(tree.attributes(child).unwrap(), found);
            if is_dir {
                left.push((child, number));
            }
            files += 1;
        }
    }
    println!("{files} files and directories");
    assert!(files > 10_000, "only {files}");
}

#[test]
fn writes_change_the_content() {
    let Some(mut tree) = tree() else { return };
    assert_eq!(read(&mut tree, "buffer_size_kb").unwrap(), "7 (expanded: 1408)\n");
    assert_eq!(read(&mut tree, "events/enable").unwrap(), "0\n");
    // A write consumes one word; the next write passes the remainder.
    let words = "alarmtimer:alarmtimer_start alarmtimer:alarmtimer_fired\n";
    assert_eq!(write(&mut tree, "set_event", words, TRUNCATE), Ok(28));
    assert_eq!(read(&mut tree, "set_event").unwrap(), "alarmtimer:alarmtimer_start\n");
    assert_eq!(read(&mut tree, "events/alarmtimer/enable").unwrap(), "X\n");
    assert_eq!(write(&mut tree, "set_event", "nonsense", APPEND), Err(Errno::INVAL));
    assert_eq!(read(&mut tree, "set_event").unwrap(), "alarmtimer:alarmtimer_start\n");
    assert_eq!(write(&mut tree, "set_event", "\n", TRUNCATE), Ok(1));
    assert_eq!(read(&mut tree, "set_event").unwrap(), "");
    assert_ne!(read(&mut tree, "buffer_size_kb").unwrap(), "7 (expanded: 1408)\n");
    assert_eq!(write(&mut tree, "README", "x", TRUNCATE), Err(Errno::INVAL));
    assert_eq!(read(&mut tree, "trace_marker"), Err(Errno::INVAL));
    assert_eq!(read(&mut tree, "trace_pipe"), Err(Errno::AGAIN));
    assert_eq!(read(&mut tree, "nothing"), Err(Errno::NOENT));
}

#[test]
fn files_of_a_removed_instance_fail_with_enodev() {
    let Some(mut tree) = tree() else { return };
    let instances = tree.find("instances").unwrap();
    tree.make_dir(instances, "a").unwrap();
    assert_eq!(tree.make_dir(instances, "a").map(drop), Err(Errno::EXIST));
    let number = tree.find("instances/a/trace").unwrap();
    let (handle, stream) = tree.open(number, READ, 1).unwrap();
    assert!(!stream);
    assert_eq!(tree.remove_dir(instances, "a"), Err(Errno::BUSY));
    tree.close(handle);
    assert_eq!(tree.remove_dir(instances, "a"), Ok(()));
    assert_eq!(tree.open(number, READ, 1).map(drop), Err(Errno::NODEV));
    assert_eq!(tree.attributes(number).map(drop), Err(Errno::NOENT));
    // A new instance of the same name has other inode numbers.
    tree.make_dir(instances, "a").unwrap();
    assert_ne!(tree.find("instances/a/trace").unwrap(), number);
    let root = tree.find("").unwrap();
    assert_eq!(tree.make_dir(root, "b").map(drop), Err(Errno::PERM));
}
