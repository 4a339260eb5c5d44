"use strict";

// update makes the children of the element was those of the element is, and changes as little as that takes: rows are the same when
// they have the same data-key. What has the focus, or is selected, stays in the document, as does what is scrolled.
function update(was, is, pinned) {
	const old = new Map();
	for (const child of was.children) {
		if (child.dataset.key !== undefined) old.set(child.dataset.key, child);
	}
	let at = was.firstChild;
	for (const fresh of [...is.childNodes]) {
		const key = fresh.dataset && fresh.dataset.key;
		let same = null;
		if (key !== undefined) {
			same = old.get(key) || null;
			old.delete(key);
		} else if (at && isLike(at, fresh)) {
			same = at;
		}
		if (!same) {
			was.insertBefore(fresh, at);
			continue;
		}
		if (same !== at) {
			if (holds(same, pinned)) { // it does not move: what is before it does, to where it comes up again
				while (at !== same) {
					const next = at.nextSibling;
					was.appendChild(at);
					at = next;
				}
			} else {
				was.insertBefore(same, at);
			}
		}
		if (same === at) at = at.nextSibling;
		change(same, fresh, pinned);
	}
	while (at) {
		const next = at.nextSibling;
		at.remove();
		at = next;
	}
}

// isLike reports whether a node without a key can become another.
function isLike(was, is) {
	return was.nodeType === is.nodeType && was.nodeName === is.nodeName && !(was.dataset && was.dataset.key !== undefined);
}

function holds(node, pinned) { return pinned.some((p) => p && node.contains(p)); }

// change makes the node was what is is.
function change(was, is, pinned) {
	if (was.nodeType !== 1) {
		if (was.nodeValue !== is.nodeValue) was.nodeValue = is.nodeValue;
		return;
	}
	for (const {name, value} of [...is.attributes]) {
		if (was.getAttribute(name) !== value) was.setAttribute(name, value);
	}
	for (const {name} of [...was.attributes]) {
		if (!is.hasAttribute(name) && name !== "style") was.removeAttribute(name); // style is a height that a person has pulled
	}
	update(was, is, pinned);
}

// pins returns the nodes that must not move: those with the focus and the selection.
function pins() {
	const selection = getSelection();
	const selected = selection && !selection.isCollapsed;
	return [document.activeElement === document.body ? null : document.activeElement, selected && selection.anchorNode, selected && selection.focusNode];
}

// A box that grows with what is in it keeps its height for so many updates after it was needed: what is below does not go up and down.
const keptFor = 30;
let tallest = 0, since = 0;

// grow has the box of causes be as high as it was lately. If it was out of sight, above what is looked at, that stays where it is.
function grow(box, was) {
	box.style.minHeight = "";
	const {height} = box.getBoundingClientRect();
	if (height >= tallest || ++since > keptFor) {
		tallest = height;
		since = 0;
	}
	box.style.minHeight = tallest + "px";
	const rect = box.getBoundingClientRect();
	if (rect.top + was < 0) scrollBy(0, rect.height - was);
}

function start() {
	const pause = document.getElementById("pause");
	const status = document.getElementById("status");
	let paused = false;
	const say = (text) => { if (status.textContent !== text) status.textContent = text; };
	pause.hidden = false;
	pause.addEventListener("click", () => {
		paused = !paused;
		pause.setAttribute("aria-pressed", String(paused));
		say(paused ? "paused" : "");
	});
	async function look() {
		const begun = performance.now();
		if (!paused && !document.hidden) {
			try {
				const answer = await fetch(location.href, {headers: {Accept: "text/html"}});
				if (!answer.ok) throw new Error("HTTP " + answer.status);
				const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
				if (!paused) {
					const box = document.activeElement.closest(".box");
					const causes = document.querySelector(".causes");
					const {height} = causes.getBoundingClientRect();
					update(document.querySelector("main"), fresh.querySelector("main"), pins());
					grow(causes, height);
					if (box && document.activeElement === document.body) box.focus({preventScroll: true}); // its row has ended
					document.title = fresh.title;
					document.body.classList.remove("stale");
					say("");
				}
			} catch (why) {
				document.body.classList.add("stale");
				say("no answer since " + new Date().toLocaleTimeString() + ": " + why.message);
			}
		}
		setTimeout(look, Math.max(1000, 10 * (performance.now() - begun))); // a page that is large asks less often
	}
	setTimeout(look, 1000);
}

start();
