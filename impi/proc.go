package impi

// A Proc identifies an MPI process (IMPI_Proc). Its fields are the values of the labels IMPI_P_IPV6 and IMPI_P_PID.
type Proc struct {
	Host [16]byte
	PID  int64
}
