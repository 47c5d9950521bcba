//! Sends the benchmark's load to a server that runs already: `load 127.0.0.1:9420 100000 20`.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use firn_bench::load::Load;

const USAGE: &str = "usage: load ADDRESS SERIES SCRAPES (series a multiple of 2,000)";
const INTERVAL_MS: i64 = 15_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, series, scrapes] = arguments.as_slice() else { panic!("{USAGE}") };
    let address: std::net::SocketAddr = address.parse().expect(USAGE);
    let mut load = Load::new(series.parse().expect(USAGE));
    let scrapes: i64 = scrapes.parse().expect(USAGE);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
    let start = Instant::now();
    for scrape in 0..scrapes {
        load.scrape(address, "/api/v1/write", now - (scrapes - scrape) * INTERVAL_MS);
    }
    let samples = load.series_count() as f64 * scrapes as f64;
    println!("{samples:.0} samples, {:.0} a second", samples / start.elapsed().as_secs_f64());
}
