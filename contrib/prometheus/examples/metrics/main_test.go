package main

func Example() {
	main()
	// Output:
	// quicksilver_ended_total{code="bad input",method="math/half",side="target"} 2
	// quicksilver_ended_total{code="ok",method="math/half",side="target"} 3
}
