"use strict";
(function () {
  var data = JSON.parse(document.getElementById("whatif-data").textContent);
  var panel = document.getElementById("whatif-panel");
  function make(tag, text, parent) {
    var element = document.createElement(tag);
    element.textContent = text || "";
    (parent || panel).appendChild(element);
    return element;
  }
  function slider(label, low, high, step, value) {
    var line = make("p");
    var name = make("label", label + " ", line);
    var input = document.createElement("input");
    input.type = "range"; input.min = low; input.max = high; input.step = step; input.value = value;
    name.appendChild(input);
    var shown = make("b", "", line);
    input.addEventListener("input", draw);
    return { input: input, shown: shown };
  }
  function count(number) { return Math.round(number).toString().replace(/\B(?=(\d{3})+$)/g, ","); }
  function short(number) { return isFinite(number) ? String(Number(number.toPrecision(4))) : "–"; }
  var least = data.combine === "least";
  // The fraction on a scale of powers: small shares are chosen as exactly as large ones.
  var share = slider("keep", -3, 0, 0.005, Math.log10(Math.max(data.share, 0.001)));
  var ratio = data.two
    ? slider(least ? "offset of " + data.second : "weight of " + data.second + " ×", least ? -1 : -2, least ? 1 : 2, 0.01, 0)
    : null;
  var guards = null;
  if (data.guards) {
    var line = make("p");
    var name = make("label", "", line);
    guards = document.createElement("input");
    guards.type = "checkbox"; guards.checked = true;
    guards.addEventListener("input", draw);
    name.appendChild(guards);
    name.appendChild(document.createTextNode(" guards"));
  }
  var again = make("button", "as it was");
  var touched = false;
  again.addEventListener("click", function () {
    share.input.value = Math.log10(Math.max(data.share, 0.001));
    if (ratio) { ratio.input.value = 0; }
    if (guards) { guards.checked = true; }
    touched = false;
    show();
  });
  var table = make("table");
  var wrap = document.createElement("div");
  wrap.className = "scroll";
  panel.insertBefore(wrap, table);
  wrap.appendChild(table);
  var yaml = make("pre");
  function fraction() { return touched ? Math.pow(10, Number(share.input.value)) : data.share; }
  function factor() { var v = ratio ? Number(ratio.input.value) : 0; return least ? v : Math.pow(10, v); }
  function kept(group, fraction, factor, passing) {
    var cells = group.cells, order = [];
    for (var i = 0; i < cells.numbers.length; i += 6) {
      var x = cells.from[0] + (cells.numbers[i] + 0.5) * cells.width[0];
      var y = cells.from[1] + (cells.numbers[i + 1] + 0.5) * cells.width[1];
      var score = !data.two ? x : least ? Math.min(x, y + factor) : x + factor * y;
      var samples = cells.numbers[i + 2] + (passing ? 0 : cells.numbers[i + 4]);
      var tokens = cells.numbers[i + 3] + (passing ? 0 : cells.numbers[i + 5]);
      if (samples > 0) { order.push([score, samples, tokens]); }
    }
    order.sort(function (a, b) { return b[0] - a[0]; });
    var left = Math.floor(fraction * group.counted + 1e-9), found = { samples: 0, tokens: 0, score: NaN };
    for (var j = 0; j < order.length && left > 0; j++) {
      var some = Math.min(left, order[j][1]);
      found.samples += some; left -= some;
      found.tokens += order[j][2] * some / order[j][1];
      found.score = order[j][0];
    }
    return found;
  }
  function row(cells, tag) {
    var line = make("tr", "", table);
    cells.forEach(function (text) { make(tag || "td", text, line); });
  }
  function draw() { touched = true; show(); }
  function show() {
    var f = fraction(), by = factor(), passing = !guards || guards.checked;
    share.shown.textContent = " " + short(100 * f) + " %";
    if (ratio) { ratio.shown.textContent = " " + (least ? (by >= 0 ? "+ " : "− ") + short(Math.abs(by)) : short(by)); }
    table.textContent = "";
    row(["group", "kept", "now", "tokens kept", "now", "from the score"], "th");
    var all = [0, 0, 0, 0];
    data.groups.forEach(function (group) {
      var found = kept(group, f, by, passing);
      row([group.name, count(found.samples), count(group.kept), count(found.tokens), count(group.tokens), short(found.score)]);
      [found.samples, group.kept, found.tokens, group.tokens].forEach(function (n, i) { all[i] += n; });
    });
    row(["all"].concat(all.map(count), [""]));
    var lines = [];
    if (ratio && touched && by !== (least ? 0 : 1)) {
      lines.push("  - stage: score", "    combine: " + data.combine, "    terms:");
      data.terms.forEach(function (term) {
        var weight = term.weight, offset = term.offset;
        if (!term.first) {
          if (least) { offset += by; } else { weight *= by; offset *= by; }
        }
        lines.push("      - {statistic: " + term.statistic + ", weight: " + short(weight) + ", offset: " + short(offset) +
          ", standardise: " + term.standardise + "}");
      });
      data.score.forEach(function (text) { lines.push("    " + text); });
    }
    lines.push("  - stage: filter", "    keep_fraction: " + Number(f.toPrecision(3)));
    if (data.guards && !passing) { lines.push("    guards: []"); }
    else if (data.guards) { lines.push("    guards: " + data.guards); }
    yaml.textContent = lines.join("\n");
  }
  show();
})();
