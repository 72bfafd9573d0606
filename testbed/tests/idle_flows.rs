//! The memory that flows take before they begin. In a matrix with millions of flows, most wait.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use weft_cc::{Rate, Span};
use weft_testbed::sim::{Lines, Options, RunConfig, RunReport, run_with};
use weft_testbed::topology::Topology;
use weft_testbed::workload::{CmOptions, parse_cm};

/// Bytes that this process has allocated, and the maximum since `MOST` was last set.
static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with counters.
struct Counting;

// SAFETY: every call is passed on as it came; counting neither allocates nor fails. The trait's own methods
// for growing and zeroing call these two.
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

/// Runs a workload whose flows begin long after the end of the run. Returns the report and the peak memory
/// besides the workload, bytes.
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
    // The workload was allocated before the measurement, so its bytes are subtracted from the reported ones.
    (RunReport { plan: report.plan - config.workload.bytes(), ..report }, most)
}

#[test]
fn waiting_flows_take_the_reported_memory_and_no_more() {
    const MANY: usize = 40_000;
    let ((few, base), (many, most)) = (idle(1_000), idle(MANY + 1_000));
    let each = (most - base) as f64 / MANY as f64;
    let said = (many.plan - few.plan) as f64 / MANY as f64;
    // The report needs a temporary list, so the measured peak may be higher.
    assert!(said <= each + 1.0 && each <= said + 8.0, "{each} bytes a flow, and {said} are reported");
    assert!(each < 160.0, "{each} bytes a flow");
    assert_eq!(many.footprint.state(), few.footprint.state());
    assert_eq!((many.stuck.len(), many.stuck.others()), (Lines::KEPT, (MANY + 1_000 - Lines::KEPT) as u64));
    assert_eq!(many.stuck[0], "flow 1 from host 0 has not been started");
}
