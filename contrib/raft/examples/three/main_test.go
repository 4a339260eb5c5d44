package main

func Example() {
	main()
	// Output:
	// sum: 40
	// sum: 42 by another leader: true
}
