mod fabric;
mod files;
mod generators;
mod graph_files;
mod graphs;
mod specs;

use super::{Topology, parse_topo};

macro_rules! public_file {
    ($path:literal) => {
        ($path, include_str!(concat!("../../../data/", $path)))
    };
}

/// Every public `.topo` file.
const PUBLIC: [(&str, &str); 12] = [
    public_file!("topologies/fat_tree_1024.topo"),
    public_file!("topologies/fat_tree_1024_1os.topo"),
    public_file!("topologies/fat_tree_1024_4os.topo"),
    public_file!("topologies/fat_tree_1024_8os.topo"),
    public_file!("topologies/fat_tree_128_1os.topo"),
    public_file!("topologies/fat_tree_8192_1os.topo"),
    public_file!("topologies/leaf_spine_1024.topo"),
    public_file!("topologies/leaf_spine_1024_oversub.topo"),
    public_file!("topologies/leaf_spine_1024_oversub_8-1.topo"),
    public_file!("topologies/leaf_spine_8192_100g.topo"),
    public_file!("topologies/leaf_spine_tiny.topo"),
    public_file!("uno/fat_tree_100Gbps.topo"),
];

/// The public file whose name ends with `end`.
fn public(end: &str) -> Topology {
    let (path, text) = PUBLIC.iter().find(|(path, _)| path.ends_with(end)).expect("a public file");
    parse_topo(path, text).expect("a valid file")
}

/// Three tiers, two links to each neighbour above the ToRs, links of different latencies,
/// switches that take time, queues of their own. 2 pods × 2 ToRs × 4 hosts.
const BUNDLED: &str = "\
nodes 16
TIERS 3
PodSize 8
Tier 2
  Downlink_speed_Gbps 100
  Downlink_Latency_ns 3000
  Switch_Latency_ns 300
  Radix_Down 4
  Bundle 2
  Queue_Down 700000
Tier 0
  Downlink_speed_Gbps 100 # to hosts
  Downlink_Latency_ns 1000
  Switch_Latency_ns 100
  Radix_Down 4
  Radix_Up 4
  Oversubscribed 1
  Queue_Up 500000
Tier 1
  Downlink_speed_Gbps 100
  Downlink_Latency_ns 2000
  Switch_Latency_ns 200
  Radix_Down 4
  Radix_Up 4
  Bundle 2
  Oversubscribed 1
";

fn bundled() -> Topology {
    parse_topo("bundled", BUNDLED).expect("a valid file")
}
