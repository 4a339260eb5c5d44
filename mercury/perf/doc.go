// Package perf implements the RPCs of Mercury 2.4's performance programs, so that each side can measure the other. Of
// the programs in Mercury 2.3, only hg_rate uses the same RPCs.
//
//	hg_rate, hg_first, hg_bw_read, hg_bw_write (C) ─► Serve
//	Rate, Bandwidth                                ─► hg_perf_server (C), or Serve
//
// Run the programs with one server process and one client process. hg_perf_server keeps the buffers allocated for the
// first Bandwidth and does not respond to a later one with a larger Size or InFlight. Either start with the largest, or
// restart it. Serve keeps at most 1 GiB of buffers for all its clients.
package perf
