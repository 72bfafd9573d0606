//! What flows cost that have not begun: of a matrix with millions, most wait.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use weft_cc::{Rate, Span};
use weft_testbed::sim::{Lines, Options, RunConfig, RunReport, run_with};
use weft_testbed::topology::Topology;
use weft_testbed::workload::{CmOptions, parse_cm};

/// Bytes that this process holds, and the most it has held since somebody last looked.
static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counting.
struct Counting;

// SAFETY: every call is passed on as it came; counting neither allocates nor fails. What the trait does by itself
// for growing and zeroing goes through these two.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(held, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A run that ends long before its flows begin, and what it took in memory at most besides the workload.
fn idle(flows: usize) -> (RunReport, usize) {
    let mut matrix = format!("Nodes 16\nConnections {flows}\n");
    for flow in 0..flows {
        writeln!(matrix, "{}->{} id {} start 9000 size 4096", flow % 16, (flow + 5) % 16, flow + 1).unwrap();
    }
    let workload = parse_cm("idle.cm", &matrix, CmOptions::default()).unwrap();
    drop(matrix);
    let topology = Topology::default_for(16, Rate::from_gbps(100)).unwrap();
    let config = RunConfig { until: Some(Span::from_us(1)), ..RunConfig::new(topology, workload) };
    let before = HELD.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let report = run_with(&config, Options::default()).unwrap();
    let most = MOST.load(Ordering::Relaxed) - before;
    // The workload is there already; all of the rest is what the run says.
    (RunReport { plan: report.plan - config.workload.bytes(), ..report }, most)
}

#[test]
fn a_flow_that_waits_costs_what_is_said_and_no_more() {
    const MANY: usize = 40_000;
    let ((few, base), (many, most)) = (idle(1_000), idle(MANY + 1_000));
    let each = (most - base) as f64 / MANY as f64;
    let said = (many.plan - few.plan) as f64 / MANY as f64;
    // The ends of flows are looked for in a list that is needed for a moment only.
    assert!(said <= each + 1.0 && each <= said + 8.0, "{each} bytes a flow, and {said} are reported");
    assert!(each < 160.0, "{each} bytes a flow");
    assert_eq!(many.footprint.state(), few.footprint.state());
    assert_eq!((many.stuck.len(), many.stuck.others()), (Lines::KEPT, (MANY + 1_000 - Lines::KEPT) as u64));
    assert_eq!(many.stuck[0], "flow 1 from host 0 has not been started");
}
