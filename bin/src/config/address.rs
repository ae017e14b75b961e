//! Addresses: reading `HOST:PORT`, and finding the one that clients should be told.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;

use super::ConfigError;

/// Resolves `HOST:PORT` (`[HOST]:PORT` for IPv6) once, at start.
pub(super) fn resolve(key: &'static str, text: &str) -> Result<SocketAddr, ConfigError> {
    let refuse = |why: String| ConfigError::Address { key, value: text.to_owned(), why };
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(refuse("the port is missing: write HOST:PORT".to_owned()));
    };
    if host.is_empty() {
        return Err(refuse(
            "the host is missing: write 0.0.0.0:PORT or [::]:PORT for all addresses".to_owned(),
        ));
    }
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return Err(refuse("write an IPv6 address in brackets: [ADDRESS]:PORT".to_owned()));
    }
    let port: u16 =
        port.parse().map_err(|_| refuse(format!("`{port}` is no port: give 1 to 65535")))?;
    if port == 0 {
        return Err(refuse("port 0 cannot be advertised: give 1 to 65535".to_owned()));
    }
    resolve_host(key, host, port)
}

/// Resolves `HOST[:PORT]`; the port defaults to `port_default`.
pub(super) fn resolve_advertise(
    key: &'static str,
    text: &str,
    port_default: u16,
) -> Result<SocketAddr, ConfigError> {
    let bare: Result<IpAddr, _> = text.trim_start_matches('[').trim_end_matches(']').parse();
    let address = match bare {
        Ok(ip) => SocketAddr::new(ip, port_default),
        Err(_) if text.contains(':') => resolve(key, text)?,
        Err(_) => resolve_host(key, text, port_default)?,
    };
    if address.ip().is_unspecified() {
        let why = "clients cannot connect to the unspecified address: give one that they can reach"
            .to_owned();
        return Err(ConfigError::Address { key, value: text.to_owned(), why });
    }
    Ok(address)
}

/// The host of `HOST[:PORT]` where it is a name and no address.
pub(super) fn host_name_of(text: &str) -> Option<&str> {
    let is_ip =
        |host: &str| host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    let host =
        if is_ip(text) { text } else { text.rsplit_once(':').map_or(text, |(host, _)| host) };
    (!is_ip(host)).then_some(host)
}

fn resolve_host(key: &'static str, host: &str, port: u16) -> Result<SocketAddr, ConfigError> {
    let refuse = |why: String| ConfigError::Address { key, value: host.to_owned(), why };
    if let Ok(ip) = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let found: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|error| refuse(format!("the name does not resolve: {error}")))?
        .collect();
    // A message id and every 4.x client prefer IPv4, so a name that has both is read as IPv4.
    found
        .iter()
        .find(|address| address.is_ipv4())
        .or(found.first())
        .copied()
        .ok_or_else(|| refuse("the name has no address".to_owned()))
}

/// A network interface's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Name such as `eth0`.
    pub interface: String,
    /// Its address.
    pub ip: IpAddr,
}

/// The address that a broker without a configured one tells its clients, by the rule of stock 4.9.8: the first IPv4 address that is
/// neither loopback nor begins with 127.0 or 192.168; else the last IPv4 address; else the first IPv6 address.
pub fn choose_advertised(addresses: &[InterfaceAddress]) -> Option<IpAddr> {
    let usable = || addresses.iter().map(|address| address.ip).filter(|ip| !ip.is_loopback());
    let v4 = || usable().filter(IpAddr::is_ipv4);
    let is_home = |ip: &IpAddr| matches!(ip, IpAddr::V4(v4) if v4.octets()[..2] == [192, 168] || v4.octets()[..2] == [127, 0]);
    v4().find(|ip| !is_home(ip))
        .or_else(|| v4().next_back())
        .or_else(|| usable().find(|ip| matches!(ip, IpAddr::V6(v6) if !v6.is_unicast_link_local())))
}

/// The addresses of all interfaces that are up and are no bridge.
pub fn interface_addresses() -> Vec<InterfaceAddress> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` is a valid place for the pointer that the call stores.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: `entry` is a node of the list that getifaddrs returned and that is freed only below.
        let node = unsafe { &*entry };
        entry = node.ifa_next;
        if node.ifa_addr.is_null() || node.ifa_flags & libc::IFF_UP as libc::c_uint == 0 {
            continue;
        }
        // SAFETY: ifa_name is a NUL-terminated string owned by the list.
        let interface =
            unsafe { std::ffi::CStr::from_ptr(node.ifa_name) }.to_string_lossy().into_owned();
        // SAFETY: ifa_addr is not null, and its family says which of the structures it is.
        let ip = unsafe {
            match i32::from((*node.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let address = &*node.ifa_addr.cast::<libc::sockaddr_in>();
                    IpAddr::from(address.sin_addr.s_addr.to_ne_bytes())
                }
                libc::AF_INET6 => {
                    let address = &*node.ifa_addr.cast::<libc::sockaddr_in6>();
                    IpAddr::from(address.sin6_addr.s6_addr)
                }
                _ => continue,
            }
        };
        if !Path::new("/sys/class/net").join(&interface).join("bridge").exists() {
            found.push(InterfaceAddress { interface, ip });
        }
    }
    // SAFETY: `list` came from getifaddrs and is freed exactly once.
    unsafe { libc::freeifaddrs(list) };
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces(ips: &[&str]) -> Vec<InterfaceAddress> {
        ips.iter()
            .map(|ip| InterfaceAddress {
                interface: "x".to_owned(),
                ip: ip.parse().expect("address"),
            })
            .collect()
    }

    #[test]
    fn the_first_routable_ipv4_address_is_advertised() {
        let chosen = choose_advertised(&interfaces(&[
            "127.0.0.1",
            "fe80::1",
            "192.168.1.4",
            "10.0.0.5",
            "10.0.0.6",
        ]));
        assert_eq!(chosen, Some("10.0.0.5".parse().expect("address")));
    }

    #[test]
    fn a_home_network_address_is_the_second_choice_and_ipv6_the_third() {
        assert_eq!(
            choose_advertised(&interfaces(&["127.0.0.1", "192.168.1.4", "192.168.2.4"])),
            Some("192.168.2.4".parse().expect("address"))
        );
        assert_eq!(
            choose_advertised(&interfaces(&["::1", "fe80::1", "2001:db8::7"])),
            Some("2001:db8::7".parse().expect("address"))
        );
        assert_eq!(choose_advertised(&interfaces(&["127.0.0.1", "::1"])), None);
    }

    #[test]
    fn addresses_of_both_families_are_read() {
        assert_eq!(
            resolve("k", "0.0.0.0:10911").map_err(|e| e.to_string()),
            Ok("0.0.0.0:10911".parse().expect("address"))
        );
        assert_eq!(
            resolve("k", "[::]:10911").map_err(|e| e.to_string()),
            Ok("[::]:10911".parse().expect("address"))
        );
        assert_eq!(
            resolve("k", "localhost:80").map_err(|e| e.to_string()),
            Ok("127.0.0.1:80".parse().expect("address"))
        );
    }

    #[test]
    fn a_bad_address_names_the_key_and_the_remedy() {
        for (text, part) in [
            ("10911", "write HOST:PORT"),
            (":10911", "the host is missing"),
            ("::1:10911", "in brackets"),
            ("a:0", "port 0"),
            ("a:70000", "is no port"),
        ] {
            let error = resolve("broker.listen", text).expect_err(text).to_string();
            assert!(
                error.contains("broker.listen") && error.contains(part) && !error.contains('\n'),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn an_advertised_address_may_omit_its_port_but_not_be_unspecified() {
        let port =
            |text| resolve_advertise("broker.advertise", text, 10911).map_err(|e| e.to_string());
        assert_eq!(port("10.1.2.3"), Ok("10.1.2.3:10911".parse().expect("address")));
        assert_eq!(port("10.1.2.3:99"), Ok("10.1.2.3:99".parse().expect("address")));
        assert_eq!(port("[2001:db8::1]:99"), Ok("[2001:db8::1]:99".parse().expect("address")));
        assert_eq!(port("2001:db8::1"), Ok("[2001:db8::1]:10911".parse().expect("address")));
        assert!(port("0.0.0.0:99").is_err_and(|error| error.contains("reach")));
    }

    #[test]
    fn names_are_told_from_addresses() {
        for (text, name) in [
            ("mq.example.com", Some("mq.example.com")),
            ("mq.example.com:99", Some("mq.example.com")),
            ("10.1.2.3", None),
            ("10.1.2.3:99", None),
            ("2001:db8::1", None),
            ("[2001:db8::1]:99", None),
        ] {
            assert_eq!(host_name_of(text), name, "{text}");
        }
    }

    #[test]
    fn this_machine_has_an_interface() {
        assert!(interface_addresses().iter().any(|address| address.ip.is_loopback()));
    }
}
