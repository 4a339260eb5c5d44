package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// A project is one whose code reads well: its unexported functions, how many of them have a name of
// one word, how many have an inflected one, the share of lines above 120 columns in percent, and
// the assignments by = in the head of an if or a switch. A program like this one measured them
// once; its lists of words may differ from those here.
type project struct {
	name                                string
	functions, oneWord, inflected, init int
	above120                            float64 // percent
}

var projects = []project{
	{"x/net/quic", 500, 115, 6, 0, 0.2},
	{"etcd raft", 172, 23, 1, 0, 0.5},
	{"memberlist", 125, 9, 0, 5, 0.3},
	{"wireguard", 77, 13, 0, 0, 0.4},
	{"quic-go", 317, 24, 4, 0, 1.0},
	{"drpc", 21, 6, 0, 0, 0.4},
}

// anchorWords are words in 10,000 of the comments of x/net/quic, etcd raft, nats.go, memberlist,
// wireguard-go, quic-go and drpc together.
var anchorWords = map[string]float64{"what": 2.6, "who": 1.3, "nobody, somebody, whoever": 0}

// wordCounts are what the style guide lists, as far as syntax shows it.
type wordCounts struct {
	lines, above100, above120 int
	words                     int            // of comments
	of                        map[string]int // words of anchorWords
	comments, headless        int
	functions                 int // unexported functions and methods
	oneWord, noVerb           int // with a name of one word; and that is no verb
	inflected                 int // with a name that begins with a word in -s or -ed
	errors, persons           int // texts of errors; those with a person in them
	init                      int // assignments by = in the head of an if or a switch
	entered, left             int // functions that unlock before they lock; and do not lock again
}

var (
	headless = regexp.MustCompile(`(?i)^(what|who|whoever|whose|whom|nobody|somebody|everybody|anybody|that|which|likewise|and|but)\b`)
	persons  = regexp.MustCompile(`(?i)\b(who|whoever|whose|whom|nobody|somebody|everybody|anybody|you|your|yours)\b`)
	word     = regexp.MustCompile(`[A-Za-z][A-Za-z']*`)
)

// verbs are the names of one word that name what a function does, in the base form.
var verbs = wordSet(`abort accept account acquire add adjust admit adopt advance allocate allow announce append apply arm ask assign attach
	await bind block build calculate call cancel check choose claim clear clone close collect commit compact compare compile compute connect
	consume convert copy count create cut deal decode decrypt defer delay delete deliver derive describe detach dial disconnect dispatch drain
	draw drive drop dump encode encrypt end enqueue ensure enter estimate evict exchange execute exit expect expire explain extend fail fetch
	fill filter find finish fire fit flush follow force format forget forward free generate get give grant grow guard halt handle hash hold
	ignore init insert install invoke join jump keep kill lease leave limit link list listen load lock log look look mark match measure merge
	mix move name negotiate note notify observe open order own pace pack panic parse park pause peek pick place plan poll pop post prepare
	print probe process promise prune publish pull push put queue raise read receive record recover recycle reduce refill refuse refresh
	register reject release reload remember remove render renew repeat replace reply report request reserve reset resize resolve respond
	rest restart restore resume retry return reuse revoke rewind ring run sample save scan schedule search seal select send serve set settle
	shed show shrink shut shutdown sign signal skip sleep sort spawn spin split stage start step stop store stream strip submit swap sync take
	tell test tick touch trace track transfer translate transmit trigger trim truncate try unlink unlock unpack update use validate verify
	visit wait wake walk warn watch withdraw wrap write yield zero`)

func wordSet(text string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(text) {
		set[w] = true
	}
	return set
}

// baseForms end as an inflected word does and are none.
var baseForms = wordSet("pass process address access class bytes less is has does need feed seed embed shed proceed exceed speed bypass discuss miss cross press compress")

// countWords counts in one file, and adds to c.
func (c *wordCounts) countWords(t *tree, f *file) {
	for line := range strings.Lines(f.text) {
		c.lines++
		width := utf8.RuneCountInString(strings.ReplaceAll(strings.TrimRight(line, "\r\n"), "\t", "    "))
		c.above100 += boolNumber(width > 100)
		c.above120 += boolNumber(width > 120)
	}
	for _, group := range f.Comments {
		c.countComment(group.Text()) // without directives
	}
	ast.Inspect(f.File, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			c.countName(n)
			if n.Body != nil {
				c.countLocks(n.Body)
			}
		case *ast.IfStmt:
			c.init += boolNumber(isAssignment(n.Init))
		case *ast.SwitchStmt:
			c.init += boolNumber(isAssignment(n.Init))
		case *ast.CallExpr:
			c.countError(n)
		}
		return true
	})
}

func (c *wordCounts) countComment(text string) {
	if strings.TrimSpace(text) == "" {
		return
	}
	c.comments++
	c.headless += boolNumber(headless.MatchString(text))
	for _, w := range word.FindAllString(text, -1) {
		c.words++
		for list := range anchorWords {
			if slices.Contains(strings.Split(list, ", "), strings.ToLower(w)) {
				c.of[list]++
			}
		}
	}
}

func (c *wordCounts) countName(fun *ast.FuncDecl) {
	name := fun.Name.Name
	if ast.IsExported(name) || name == "main" || name == "init" || name == "_" {
		return
	}
	c.functions++
	first := name
	if i := strings.IndexFunc(name, func(r rune) bool { return unicode.IsUpper(r) || r == '_' }); i > 0 {
		first = name[:i]
	}
	if first == name {
		c.oneWord++
		c.noVerb += boolNumber(!verbs[name])
	}
	c.inflected += boolNumber(!baseForms[first] && len(first) > 2 && (strings.HasSuffix(first, "s") || strings.HasSuffix(first, "ed")))
}

// isAssignment reports whether the head of a statement changes a variable instead of making one.
func isAssignment(s ast.Stmt) bool {
	a, ok := s.(*ast.AssignStmt)
	return ok && a.Tok != token.DEFINE
}

// errorMakers are the functions whose texts are those of errors.
var errorMakers = wordSet("Errorf New WithText Error errorf newError bad report")

func (c *wordCounts) countError(call *ast.CallExpr) {
	name := ""
	switch fun := call.Fun.(type) {
	case *ast.SelectorExpr:
		name = fun.Sel.Name
	case *ast.Ident:
		name = fun.Name
	}
	if !errorMakers[name] {
		return
	}
	for _, arg := range call.Args {
		text := literalText(arg)
		if text == "" {
			continue
		}
		c.errors++
		c.persons += boolNumber(persons.MatchString(text))
	}
}

// literalText returns the text of a string literal, of a sum of them, or of the first argument of a
// call such as Sprintf.
func literalText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		return literalText(e.X) + literalText(e.Y)
	case *ast.CallExpr:
		if len(e.Args) > 0 {
			return literalText(e.Args[0])
		}
	}
	return ""
}

// countLocks looks at the locks of a function in the order of the text, without the functions
// inside of it.
func (c *wordCounts) countLocks(body *ast.BlockStmt) {
	first, last := map[string]bool{}, map[string]bool{} // by lock: whether the call is an unlock
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.DeferStmt:
			return false
		case *ast.CallExpr:
			fun, ok := n.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"Lock", "RLock", "Unlock", "RUnlock"}, fun.Sel.Name) {
				return true
			}
			lock, unlocks := types.ExprString(fun.X), strings.HasSuffix(fun.Sel.Name, "nlock")
			if _, seen := first[lock]; !seen {
				first[lock] = unlocks
			}
			last[lock] = unlocks
		}
		return true
	})
	entered, left := false, false
	for lock, unlocks := range first {
		entered = entered || unlocks
		left = left || unlocks && last[lock]
	}
	c.entered += boolNumber(entered)
	c.left += boolNumber(left)
}

func boolNumber(is bool) int {
	if is {
		return 1
	}
	return 0
}

// wordTable is a table: a line for each kind, a column for each of the counts and for each project.
func wordTable(names []string, counts []*wordCounts) string {
	var b strings.Builder
	line := func(kind string, ours func(c *wordCounts) string, theirs func(p project) string) {
		fmt.Fprintf(&b, "%-34s", kind)
		for _, c := range counts {
			fmt.Fprintf(&b, " %11s", ours(c))
		}
		b.WriteString(" |")
		for _, p := range projects {
			fmt.Fprintf(&b, " %11s", theirs(p))
		}
		b.WriteString("\n")
	}
	share := func(n, all int) string { return fmt.Sprintf("%d %4.1f%%", n, percent(n, all)) }
	unknown := func(project) string { return "" }
	fmt.Fprintf(&b, "%-34s", "")
	for _, name := range names {
		fmt.Fprintf(&b, " %11s", name)
	}
	b.WriteString(" |")
	for _, p := range projects {
		fmt.Fprintf(&b, " %11s", p.name)
	}
	b.WriteString("\n")
	line("unexported functions", func(c *wordCounts) string { return strconv.Itoa(c.functions) },
		func(p project) string { return strconv.Itoa(p.functions) })
	line("  with a name of one word", func(c *wordCounts) string { return share(c.oneWord, c.functions) },
		func(p project) string { return share(p.oneWord, p.functions) })
	line("    that is no verb", func(c *wordCounts) string { return share(c.noVerb, c.functions) }, unknown)
	line("  named by a word in -s or -ed", func(c *wordCounts) string { return share(c.inflected, c.functions) },
		func(p project) string { return share(p.inflected, p.functions) })
	line("  entered locked", func(c *wordCounts) string { return strconv.Itoa(c.entered) }, unknown)
	line("    and left unlocked", func(c *wordCounts) string { return strconv.Itoa(c.left) }, unknown)
	line("comments without a subject", func(c *wordCounts) string { return share(c.headless, c.comments) }, unknown)
	line("lines above 100 columns", func(c *wordCounts) string { return share(c.above100, c.lines) }, unknown)
	line("lines above 120 columns", func(c *wordCounts) string { return share(c.above120, c.lines) },
		func(p project) string { return fmt.Sprintf("%.1f%%", p.above120) })
	line("errors with a person in the text", func(c *wordCounts) string { return share(c.persons, c.errors) }, unknown)
	line("if x = y; and switch x = y;", func(c *wordCounts) string { return strconv.Itoa(c.init) },
		func(p project) string { return strconv.Itoa(p.init) })
	b.WriteString("of 10,000 words of comments:\n")
	for _, list := range slices.Sorted(maps.Keys(anchorWords)) {
		fmt.Fprintf(&b, "  %-32s", list)
		for _, c := range counts {
			fmt.Fprintf(&b, " %11.1f", 100*percent(c.of[list], c.words))
		}
		fmt.Fprintf(&b, " | %11.1f in all of them\n", anchorWords[list])
	}
	return b.String()
}

func percent(n, all int) float64 { return 100 * float64(n) / float64(max(all, 1)) }

// countTree counts in the files of the product that are in a folder.
func countTree(t *tree, pattern string) *wordCounts {
	c := &wordCounts{of: map[string]int{}}
	for _, f := range t.files {
		if !f.test && !testOnly(f.pkg) && (pattern == "" || matchesPattern(f.pkg, pattern)) {
			c.countWords(t, f)
		}
	}
	return c
}

// TestWords reports how the product reads, beside projects that read well. It is information:
// numbers fail no test.
//
//	go test ./internal/test/archtest -run Words -v
func TestWords(t *testing.T) {
	t.Parallel()
	tr, err := loadTree(os.DirFS("../../.."))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	var counts []*wordCounts
	for _, folder := range []string{"all", "qs", "hg", "na", "bulk", "plugins", "cmd"} {
		names = append(names, folder)
		if folder == "all" {
			counts = append(counts, countTree(tr, ""))
			continue
		}
		counts = append(counts, countTree(tr, folder+"/..."))
	}
	t.Logf("\n%s", wordTable(names, counts))
}

func TestWordCounts(t *testing.T) {
	got := countTree(fakeTree{
		"hg/a.go": "// Package hg is good.\npackage hg\n\n" +
			"// What it does is not said by a subject.\nfunc say() {}\n" +
			"// send writes, and nobody knows who reads.\nfunc send() {}\n" +
			"func tells() {}\nfunc sentAll() {}\nfunc isOpen() {}\nfunc process() {}\nfunc Say() {}\nfunc init() {}\n" +
			"type a struct {\n\tn int // who has it\n}\n\n//go:noinline\nfunc wake() {}\n" +
			"// " + strings.Repeat("x", 98) + "\n// " + strings.Repeat("x", 118) + "\nvar v int\n",
		"hg/errors.go": "package hg\nfunc fail() error {\n" +
			"\t_ = errors.New(\"hg: nobody is there\")\n\t_ = fmt.Errorf(\"hg: closed \"+\"by you: %w\", err)\n" +
			"\t_ = na.WithText(na.ErrBusy, fmt.Sprintf(\"%d are busy\", n))\n\treturn other(\"who\")\n}\n",
		"hg/init.go": "package hg\nfunc set() {\n\tif a := 1; a > 0 {\n\t}\n\tif b = 2; b > 0 {\n\t}\n" +
			"\tswitch c += 1; {\n\t}\n\tif d++; true {\n\t}\n}\n",
		"hg/locks.go": "package hg\n" +
			"func lock() { s.mu.Lock(); defer s.mu.Unlock() }\n" +
			"func pass() { s.mu.Lock(); s.mu.Unlock() }\n" +
			"func call() { s.mu.Unlock(); f(); s.mu.Lock() }\n" +
			"func end() { other.Lock(); s.mu.Unlock(); other.Unlock() }\n" +
			"func start() { go func() { s.mu.Unlock() }() }\n" +
			"func read() { s.mu.RUnlock() }\n",
		"hg/a_test.go":            "package hg\n// who is not counted\nfunc tells() {}\n",
		"internal/test/long/a.go": "package long\n// who is not counted\nfunc tells() {}\n",
	}.load(t), "")
	lines := map[string][2]int{
		"functions": {got.functions, 15}, "oneWord": {got.oneWord, 13}, "noVerb": {got.noVerb, 3}, "inflected": {got.inflected, 1},
		"comments": {got.comments, 5}, "headless": {got.headless, 2}, "above100": {got.above100, 2}, "above120": {got.above120, 1},
		"errors": {got.errors, 3}, "persons": {got.persons, 2}, "init": {got.init, 2}, "entered": {got.entered, 3}, "left": {got.left, 2},
		"what": {got.of["what"], 1}, "who": {got.of["who"], 2}, "nobody": {got.of["nobody, somebody, whoever"], 1},
	}
	for what, n := range lines {
		if n[0] != n[1] {
			t.Errorf("%s: got %d, want %d", what, n[0], n[1])
		}
	}
	text := wordTable([]string{"made up"}, []*wordCounts{got})
	for _, want := range []string{
		"x/net/quic   etcd raft",
		"  with a name of one word             13 86.7% |   115 23.0%    23 13.4%",
		"errors with a person in the text       2 66.7% |",
		"|         2.6 in all of them\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report has no %q:\n%s", want, text)
		}
	}
}
