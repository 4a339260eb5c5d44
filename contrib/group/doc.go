// Package group reports the members of a service to its processes: members that joined, are
// suspected, failed, left, or returned. Membership is hashicorp/memberlist's (SWIM); what it learns
// is put to use for a Node.
//
//	memberlist ─► Source ─► Group ─┬─► View, with an epoch ─► Owners, ByKey
//	                               ├─► OnEvent, Events
//	                               ├─► Watch: a qs.Resolver
//	                               └─► na.Context.Disconnect: calls to a member that failed end at once
//
// A view is the state of one process. Views of two processes may differ, permanently if the network
// is partitioned: what must never differ, such as where data lies, is fixed some other way.
//
// It is a module of its own, so that the library does not depend on memberlist.
package group
