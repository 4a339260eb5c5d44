// Package perf has the RPCs of the performance programs of Mercury 2.4, so that each side can measure the other.
// Of those of Mercury 2.3 only hg_rate has the same ones.
//
//	hg_rate, hg_first, hg_bw_read, hg_bw_write (C) ─► Serve
//	Rate, Bandwidth                                ─► hg_perf_server (C), or Serve
//
// The programs are started with one server process and one client process. hg_perf_server keeps the buffers that
// its first Bandwidth asks for, and does not answer a later one with a larger Size or more InFlight: begin with
// the largest, or start it anew. Serve keeps at most 1 GiB of buffers for all its clients.
package perf
