//! What must be right before a start, and what the program says when it is not: one line with the remedy, and exit status 1.

use std::fs::OpenOptions;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{free_ports, ringmq};

/// `ringmq check` of a store of one shard in `dir`, on free ports, without the measurement.
fn check(dir: &Path, port: u16) -> Command {
    let mut command = ringmq();
    let listen = format!("127.0.0.1:{port}");
    command
        .args(["check", "--no-measure", "--shards", "1", "--listen", &listen, "--data-dir"])
        .arg(dir);
    command
}

/// The lines that report a failed check.
fn failures(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.starts_with("FAILED"))
        .map(str::to_owned)
        .collect()
}

/// A directory on a real disk: the system's directory for temporary files may be in memory.
fn disk_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("temporary directory")
}

#[test]
fn a_sound_machine_passes_and_nothing_is_left_behind() {
    let dir = disk_dir();
    let output = check(&dir.path().join("store"), free_ports(1)).output().expect("run");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(failures(&output), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
}

#[test]
fn the_disk_is_measured() {
    let dir = disk_dir();
    let mut command = ringmq();
    let listen = format!("127.0.0.1:{}", free_ports(1));
    let output = command
        .args(["check", "--shards", "1", "--listen", &listen, "--data-dir"])
        .arg(dir.path())
        .output()
        .expect("run");
    let text = String::from_utf8_lossy(&output.stdout);
    for row in ["direct write", "direct read", "flush", "p99 us"] {
        assert!(text.contains(row), "{text}");
    }
}

#[test]
fn each_taken_port_is_named_with_its_use() {
    let port = free_ports(1);
    for (taken, what) in [(port, "client port"), (port - 2, "VIP port"), (port + 1, "HA port")] {
        let _other = TcpListener::bind(("127.0.0.1", taken)).expect("bind");
        let dir = disk_dir();
        let output = check(dir.path(), port).output().expect("run");
        assert_eq!(output.status.code(), Some(1));
        let lines = failures(&output);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].contains(&taken.to_string())
                && lines[0].contains(what)
                && lines[0].contains("broker.listen"),
            "{lines:?}"
        );
    }
}

#[test]
fn a_locked_store_names_the_process_that_holds_it() {
    let dir = disk_dir();
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.path().join("lock"))
        .expect("open");
    // SAFETY: flock is a plain structure for which all-zero bytes are a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_len = 1;
    // SAFETY: the descriptor is open and `lock` outlives the call.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) }, 0);
    let output = check(dir.path(), free_ports(1)).output().expect("run");
    let lines = failures(&output);
    let holder = format!("process {}", std::process::id());
    assert!(
        lines.len() == 1 && lines[0].contains(&holder) && lines[0].contains("--data-dir"),
        "{lines:?}"
    );
}

#[test]
fn a_store_in_memory_is_refused() {
    if !Path::new("/dev/shm").is_dir() {
        eprintln!("skipped: no /dev/shm here");
        return;
    }
    let dir = Path::new("/dev/shm").join(format!("ringmq-test-{}", std::process::id()));
    let lines = failures(&check(&dir, free_ports(1)).output().expect("run"));
    assert!(
        lines.len() == 1 && lines[0].contains("in memory") && lines[0].contains("durability.level"),
        "{lines:?}"
    );
    assert!(!dir.exists());
    let output = check(&dir, free_ports(1)).args(["--durability", "memory"]).output().expect("run");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_directory_that_cannot_be_written_is_refused() {
    let dir = disk_dir();
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("write");
    let lines = failures(&check(&file.join("store"), free_ports(1)).output().expect("run"));
    assert!(lines.iter().any(|line| line.contains("direct I/O")), "{lines:?}");
}

#[test]
fn too_few_descriptors_are_refused_with_the_command_to_run() {
    let dir = disk_dir();
    let mut command = check(dir.path(), free_ports(1));
    // SAFETY: setrlimit is async-signal-safe and its argument lives on the closure's own stack.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: 100, rlim_max: 100 };
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
            Ok(())
        });
    }
    let lines = failures(&command.output().expect("run"));
    assert!(
        lines.len() == 1 && lines[0].contains("open files") && lines[0].contains("ulimit -n"),
        "{lines:?}"
    );
}

#[test]
fn memory_budgets_beyond_the_machine_are_refused() {
    let dir = disk_dir();
    let config = dir.path().join("ringmq.toml");
    std::fs::write(&config, "[limits]\nblock_budget_bytes = 68719476736\n").expect("write");
    let lines = failures(
        &check(dir.path(), free_ports(1))
            .arg("--shards=64")
            .arg("--config")
            .arg(&config)
            .output()
            .expect("run"),
    );
    assert!(lines.iter().any(|line| line.contains("limits.block_budget_bytes")), "{lines:?}");
}

/// A filter that answers io_uring_setup with an error number and lets everything else pass, as container runtimes install.
fn forbid_io_uring(errno: u32) -> std::io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            jt: 0,
            jf: 1,
            ..statement(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                libc::SYS_io_uring_setup as u32,
            )
        },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: both calls take numbers, and a filter that outlives them.
    let outcome = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter)
    };
    if outcome == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn forbidden_io_uring_is_explained_and_not_left_to_the_executor() {
    for (errno, part) in [(libc::ENOSYS, "Linux 5.8"), (libc::EPERM, "seccomp")] {
        let dir = disk_dir();
        let mut command = check(dir.path(), free_ports(1));
        // SAFETY: the filter is built on the stack and installed by two system calls.
        unsafe { command.pre_exec(move || forbid_io_uring(errno as u32)) };
        let output = command.output().expect("run");
        let lines = failures(&output);
        assert!(
            lines.len() == 1 && lines[0].contains("io_uring") && lines[0].contains(part),
            "{output:?}"
        );
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn any_user_with_one_directory_is_enough() {
    use std::os::unix::fs::{PermissionsExt, chown};
    const USER: u32 = 3_000;
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIPPED: becoming another user needs root");
        return;
    }
    let dir = disk_dir();
    // The user may not be able to walk to where the program was built: it gets a copy.
    let home = tempfile::tempdir().expect("temporary directory");
    let program = home.path().join("ringmq");
    std::fs::copy(env!("CARGO_BIN_EXE_ringmq"), &program).expect("copy");
    for path in [home.path(), program.as_path()] {
        let everybody = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, everybody).expect("permissions");
    }
    let store = dir.path().join("store");
    std::fs::create_dir(&store).expect("a directory");
    chown(&store, Some(USER), Some(USER)).expect("an owner");
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), everybody).expect("permissions");
    let reachable = dir.path().ancestors().all(|path| {
        std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o001 != 0)
    });
    if !reachable {
        println!(
            "SKIPPED: {} lies below a directory that only its owner may enter",
            store.display()
        );
        return;
    }
    let (port, namesrv) = (free_ports(1), free_ports(1));
    let mut command = Command::new(&program);
    command.env_clear().current_dir("/").uid(USER).gid(USER).args([
        "standalone",
        "--shards=1",
        &format!("--listen=127.0.0.1:{port}"),
        &format!("--namesrv-listen=127.0.0.1:{namesrv}"),
    ]);
    command.arg("--data-dir").arg(&store);
    let mut running = crate::signals::Running::start(&mut command);
    running.wait_for("boot success");
    running.signal(libc::SIGTERM);
    running.wait_for("stopped");
}

#[test]
fn shards_stay_on_the_processors_that_are_allowed() {
    let dir = disk_dir();
    // The last processor alone, as a container may have it; the first one is what a careless count would take.
    // SAFETY: cpu_set_t is a plain bit array for which all-zero bytes are a valid value.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer and the size describe `allowed`.
    let asked = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut allowed) };
    assert_eq!(asked, 0);
    let last = (0..libc::CPU_SETSIZE as usize)
        // SAFETY: the number is below CPU_SETSIZE.
        .rfind(|cpu| unsafe { libc::CPU_ISSET(*cpu, &allowed) })
        .expect("a processor");
    let port = free_ports(1);
    let mut command = ringmq();
    command.args(["broker", &format!("--listen=127.0.0.1:{port}"), "--data-dir"]).arg(dir.path());
    // SAFETY: the set is on the stack, and one system call is made.
    unsafe {
        command.pre_exec(move || {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(last, &mut one);
            match libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let mut running = crate::signals::Running::start(&mut command);
    // One shard on one processor, although the machine may have more.
    running.wait_for("shards=1");
    running.wait_for("boot success");
    for task in std::fs::read_dir(format!("/proc/{}/task", running.id())).expect("its threads") {
        let status = task.expect("a thread").path().join("status");
        let status = std::fs::read_to_string(status).expect("its status");
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        assert_eq!(list.map(str::trim), Some(last.to_string().as_str()), "{status}");
    }
    running.signal(libc::SIGTERM);
    running.wait_for("stopped");
}

/// A function that nothing refers to is left out of a program: it is there because glommio's call leads to it.
#[test]
fn the_rings_of_the_program_are_made_by_its_own_call() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_ringmq")).expect("the program");
    let name = b"__wrap___sys_io_uring_setup";
    assert!(
        program.windows(name.len()).any(|bytes| bytes == name),
        "its io_urings are made without flags"
    );
}
