package impi

// A Proc identifies one MPI process (IMPI_Proc): the values of its labels IMPI_P_IPV6 and IMPI_P_PID.
type Proc struct {
	Host [16]byte
	PID  int64
}
