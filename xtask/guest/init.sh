#!/bin/dash
# Process 1 of the guest: makes the usual mounts that early.sh has not made, runs the job and reports to the host over virtio ports.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb
mkdir -p /dev/pts /run/lock
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr
hostname tracer-vm
busybox ifconfig lo 127.0.0.1 up
for module in $(cat /run/job/modprobe); do
    modprobe "$module"
done

# Prints the virtio port of this name.
port() {
    for entry in /sys/class/virtio-ports/*; do
        if [ "$(cat "$entry/name")" = "$1" ]; then
            echo "/dev/${entry##*/}"
            return
        fi
    done
    echo "init: no virtio port is called $1" >/dev/console
    busybox poweroff -f
}

# A port can be opened once only, so programs write to pipes, which they may open again.
exec 3>"$(port report)"
mkfifo /run/stdout /run/stderr
cat /run/stdout >"$(port stdout)" &
out=$!
cat /run/stderr >"$(port stderr)" &
err=$!
echo "up $(cut -d' ' -f1 /proc/uptime)" >&3

# In a session and process group of its own: process 1 has none (0), which programs do not expect.
setsid -w /run/job/command </dev/null >/run/stdout 2>/run/stderr 3>&-
code=$?

# Processes that the command left behind may hold the pipes: they are not waited for long.
for try in 1 2 3 4 5 6 7 8 9 10; do
    kill -0 $out 2>/dev/null || kill -0 $err 2>/dev/null || break
    sleep 0.1
done
if [ -s /run/job/out ]; then
    tar -C / -cf "$(port files)" -T /run/job/out 2>/dev/console
fi
echo "exit $code $(cut -d' ' -f1 /proc/uptime)" >&3
busybox poweroff -f
