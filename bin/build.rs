//! Has the linker send glommio's call that makes an io_uring through `src/ring_setup.rs`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--wrap=__sys_io_uring_setup");
}
