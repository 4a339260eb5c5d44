package impi

import "github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"

// Labels that every client of version 0.0 submits, in this order.
const (
	LabelVersion       protocol.Label = 0x1000 // IMPI_C_VERSION
	LabelHosts         protocol.Label = 0x1100 // IMPI_C_NHOSTS
	LabelProcs         protocol.Label = 0x1200 // IMPI_C_NPROCS
	LabelPacketLen     protocol.Label = 0x1300 // IMPI_C_PKTLEN
	LabelMaxTag        protocol.Label = 0x1400 // IMPI_C_TAGUB
	LabelCollXSize     protocol.Label = 0x1500 // IMPI_C_COLL_XSIZE
	LabelCollMaxLinear protocol.Label = 0x1600 // IMPI_C_COLL_MAXLINEAR

	LabelHostAddr    protocol.Label = 0x2000 // IMPI_H_IPV6
	LabelHostPort    protocol.Label = 0x2100 // IMPI_H_PORT
	LabelHostProcs   protocol.Label = 0x2200 // IMPI_H_NPROCS
	LabelHostAckmark protocol.Label = 0x2300 // IMPI_H_ACKMARK
	LabelHostHiwater protocol.Label = 0x2400 // IMPI_H_HIWATER

	LabelProcAddr protocol.Label = 0x3000 // IMPI_P_IPV6
	LabelProcPID  protocol.Label = 0x3100 // IMPI_P_PID
)

// labels lists the labels of version 0.0 in the order in which they are submitted.
var labels = [...]protocol.Label{
	LabelVersion, LabelHosts, LabelProcs, LabelPacketLen, LabelMaxTag, LabelCollXSize, LabelCollMaxLinear,
	LabelHostAddr, LabelHostPort, LabelHostProcs, LabelHostAckmark, LabelHostHiwater, LabelProcAddr, LabelProcPID,
}
