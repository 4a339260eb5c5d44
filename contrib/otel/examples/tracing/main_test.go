package main

func Example() {
	main()
	// Output:
	// bread costs 7 <nil>
	// client shop/page
	//   server shop/page
	//     client shop/price
	//       server shop/price
}
