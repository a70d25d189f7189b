//! The options `--metrics` and `--web`.

use std::net::{IpAddr, SocketAddr};

use clap::Args;
use steerage_control::{metrics, web};

/// The options for watching a run by Prometheus.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Report")]
pub(crate) struct MetricsArgs {
    /// Serve metrics for Prometheus at http://ADDR:PORT/metrics [default: 127.0.0.1:10777]
    #[arg(hide_short_help = true, long, value_name = "ADDR:PORT", num_args = 0..=1,
        default_missing_value = DEFAULT, value_parser = |text: &str| address(text, metrics::ADDRESS_DEFAULT, "--metrics"))]
    pub(crate) metrics: Option<SocketAddr>,

    /// Serve metrics to requests for http://NAME too; can be repeated [default: localhost, addresses, this machine's name]
    #[arg(hide_short_help = true, long, value_name = "NAME", action = clap::ArgAction::Append, requires = "metrics",
        value_parser = name)]
    pub(crate) metrics_host: Vec<String>,
}

/// The option for watching a run in a browser.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Report")]
pub(crate) struct WebArgs {
    /// Serve a live page for a browser at http://ADDR:PORT [default: 127.0.0.1:10778]
    #[arg(hide_short_help = true, long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = DEFAULT,
        value_parser = |text: &str| address(text, web::ADDRESS_DEFAULT, "--web"))]
    pub(crate) web: Option<SocketAddr>,
}

/// The value that means the default address.
const DEFAULT: &str = "";

/// A name of a host, without a port.
fn name(text: &str) -> Result<String, &'static str> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if !text.is_empty() && text.bytes().all(is_name) {
        Ok(text.to_owned())
    } else {
        Err("write the name in Prometheus' target without its port, such as router.example")
    }
}

/// An address and a port, or one of them and the other part of the default.
fn address(text: &str, default: SocketAddr, option: &str) -> Result<SocketAddr, String> {
    let address = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if text == DEFAULT {
        Ok(default)
    } else if let Ok(port) = text.strip_prefix(':').unwrap_or(text).parse() {
        Ok(SocketAddr::new(default.ip(), port))
    } else if let Ok(address) = address.parse::<IpAddr>() {
        Ok(SocketAddr::new(address, default.port()))
    } else {
        text.parse().map_err(|_| {
            format!(
                "write an address and a port, such as 127.0.0.1:9000; if you want the default, write {option} after the devices"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_no_port() {
        assert_eq!(["router", "router.example."].map(|text| name(text).unwrap()), ["router", "router.example."]);
        for wrong in ["", "router:9000", "http://router", "*.example", "a b"] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_address_a_port_or_both() {
        let read = |text| address(text, metrics::ADDRESS_DEFAULT, "--metrics").map(|address| address.to_string());
        let texts = ["", "9000", ":9000", "0.0.0.0", "10.0.0.1:80", "::1", "[::1]", "[::]:9000"];
        let expected = [
            "127.0.0.1:10777",
            "127.0.0.1:9000",
            "127.0.0.1:9000",
            "0.0.0.0:10777",
            "10.0.0.1:80",
            "[::1]:10777",
            "[::1]:10777",
            "[::]:9000",
        ];
        assert_eq!(texts.map(|text| read(text).unwrap()), expected);
        for wrong in ["eth0", "65536", "1.2.3.4:", "1.2.3.4:x", "localhost:9000", "::1:x", "-1"] {
            assert!(
                address(wrong, web::ADDRESS_DEFAULT, "--web").unwrap_err().contains("write --web after"),
                "{wrong}"
            );
        }
    }
}
