//! Sends the query benchmark's data to a server that runs already, to look at its queries by hand:
//! `devops 127.0.0.1:9420`. Prints the end of the data and requests to try.

use std::time::{SystemTime, UNIX_EPOCH};

use firn_bench::client::post_all;
use firn_bench::devops::{DevOps, SLICE_COUNT, SLICE_MS};
use firn_bench::pattern::PATTERNS;

const USAGE: &str = "usage: devops ADDRESS";

fn main() {
    let address: std::net::SocketAddr = std::env::args().nth(1).expect(USAGE).parse().expect(USAGE);
    let now_ms =
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
    let end_ms = now_ms / 60_000 * 60_000;
    let mut data = DevOps::new();
    for slice in 0..SLICE_COUNT {
        let (bodies, _) = data.slice(slice, end_ms - (SLICE_COUNT - slice) * SLICE_MS);
        post_all(address, "/api/v1/write", &bodies, 2);
    }
    println!("the data ends at {end_ms}");
    for pattern in &PATTERNS {
        println!("{}\t{}", pattern.name, pattern.target(end_ms, 0));
    }
}
