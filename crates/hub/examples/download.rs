//! Downloads a model and says how fast: `cargo run --release -p cairn-hub --example download --
//! OWNER/NAME`. The environment names hub, token and cache, as for `cairn models download`.

use std::time::Instant;

use cairn_hub::{DownloadProgress, Hub, HubOptions, Revision};
use tokio::sync::watch;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("the argument is OWNER/NAME")?;
    let hub = Hub::new(HubOptions::from_lookup(std::env::var_os)?)?;
    let start = Instant::now();
    let plan = hub.plan(&name.parse()?, &Revision::default()).await?;
    let (progress, watched) = watch::channel(DownloadProgress::default());
    let model = hub.download(&plan, &progress).await?;
    let seconds = start.elapsed().as_secs_f64();
    let fetched = watched.borrow().bytes_fetched;
    eprintln!("{fetched} bytes in {seconds:.2} s: {:.0} MB/s", fetched as f64 / 1e6 / seconds);
    println!("{}", model.folder.display());
    Ok(())
}
