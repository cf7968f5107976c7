#!/bin/busybox sh
# /init of the initramfs: loads the disks' drivers, mounts the root and hands over to its own init.
export PATH=/bin
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do
    [ -e "$module" ] && insmod "$module"
done

# Prints the device whose serial number is $1; disks may take a moment to appear.
disk() {
    for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        for block in /sys/block/vd*; do
            if [ "$(cat "$block/serial" 2>/dev/null)" = "$1" ]; then
                echo "/dev/${block##*/}"
                return
            fi
        done
        sleep 0.1
    done
    echo "early: no disk has the serial number $1" >/dev/console
    poweroff -f
}

mkdir /payload
mount -t ext4 -o noatime "$(disk root)" /root
mount -t ext4 -o ro,noatime "$(disk modules)" /root/usr/lib/modules
mount -t ext4 -o noatime "$(disk payload)" /payload
mount -t tmpfs -o mode=755 tmpfs /root/run
cp -r /job /root/run/job
mount -t tmpfs -o mode=1777 tmpfs /root/tmp
mount -o move /dev /root/dev
mkdir -p /root/dev/shm
mount -t tmpfs -o mode=1777 tmpfs /root/dev/shm
# The tree last: it may lie below any of these.
mkdir -p "/root/$(cat /job/tree)"
mount -o move /payload "/root/$(cat /job/tree)"
mount -o move /sys /root/sys
mount -o move /proc /root/proc
exec switch_root /root /run/job/init
