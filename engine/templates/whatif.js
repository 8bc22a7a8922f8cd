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
    input.addEventListener("input", function () { touched = touched || input === share.input; show(); });
    return { input: input, shown: shown };
  }
  function count(number) { return Math.round(number).toString().replace(/\B(?=(\d{3})+$)/g, ","); }
  function short(number) { return isFinite(number) ? String(Number(number.toPrecision(4))) : "–"; }
  var least = data.combine === "least";
  // Logarithmic scale, so that small shares can be set as precisely as large shares.
  var share = slider("keep", -3, 0, 0.005, Math.log10(Math.max(data.share, 0.001)));
  var ratio = data.two
    ? slider(least ? "offset of " + data.second : "weight of " + data.second + " ×", least ? -1 : -2, least ? 1 : 2, 0.01, 0)
    : null;
  var guards = null;
  if (data.guards.length) {
    var line = make("p");
    var name = make("label", "", line);
    guards = document.createElement("input");
    guards.type = "checkbox"; guards.checked = true;
    guards.addEventListener("input", show);
    name.appendChild(guards);
    name.appendChild(document.createTextNode(" guards"));
  }
  data.bounds.forEach(function (bound) {
    var nearest = 0;
    bound.steps.forEach(function (value, i) {
      if (!nearest || Math.abs(value - bound.now) < Math.abs(bound.steps[nearest - 1] - bound.now)) { nearest = i + 1; }
    });
    var label = bound.statistic + (bound.high ? " at most" : " at least") + (bound.quantile ? " the quantile" : "");
    bound.slider = slider(label, 0, bound.steps.length, 1, nearest);
    bound.nearest = nearest;
    bound.moved = false;
    bound.slider.input.addEventListener("input", function () { bound.moved = true; show(); });
  });
  function step(bound) { return Number(bound.slider.input.value); }
  function end(bound) { return !bound.moved ? bound.now : step(bound) ? bound.steps[step(bound) - 1] : null; }
  var again = make("button", "reset");
  var touched = false;
  again.addEventListener("click", function () {
    share.input.value = Math.log10(Math.max(data.share, 0.001));
    if (ratio) { ratio.input.value = 0; }
    if (guards) { guards.checked = true; }
    data.bounds.forEach(function (bound) { bound.slider.input.value = bound.nearest; bound.moved = false; });
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
  // Passing samples by cell with moved bounds. By bound: samples that pass all bounds of the run (`now`), those of them that pass the
  // moved bound (`still`), and those that this bound alone rejected and that pass now (`more`). Exact for a single moved bound; several
  // are combined by their shares.
  function guarded(group) {
    var found = {}, numbers = group.guarded ? group.guarded.numbers : [];
    for (var i = 0; i < numbers.length; i += 8) {
      var bound = data.bounds[numbers[i]];
      if (!bound.moved) { continue; }
      var key = numbers[i + 1] + "," + numbers[i + 2];
      var cell = found[key] || (found[key] = { x: numbers[i + 1], y: numbers[i + 2], of: {} });
      var of = cell.of[numbers[i]] || (cell.of[numbers[i]] = { now: [0, 0], still: [0, 0], more: [0, 0] });
      for (var n = 0; n < 2; n++) {
        of.now[n] += numbers[i + 4 + n];
        if (numbers[i + 3] >= step(bound)) { of.still[n] += numbers[i + 4 + n]; of.more[n] += numbers[i + 6 + n]; }
      }
    }
    return Object.keys(found).map(function (key) {
      var cell = found[key], names = Object.keys(cell.of);
      // A bound without passing samples in this cell does not reduce those of other bounds.
      var now = cell.of[names[0]].now;
      names.forEach(function (name) { if (cell.of[name].now[0] > now[0]) { now = cell.of[name].now; } });
      var amounts = [0, 1].map(function (n) {
        function share(name) { return cell.of[name].now[n] ? cell.of[name].still[n] / cell.of[name].now[n] : 1; }
        function shares(but) { return names.reduce(function (all, name) { return name === but ? all : all * share(name); }, 1); }
        return names.reduce(function (all, name) { return all + cell.of[name].more[n] * shares(name); }, now[n] * shares(null));
      });
      return [cell.x, cell.y, amounts[0], amounts[1]];
    });
  }
  function counted(group, passing) {
    if (passing && data.bounds.some(function (bound) { return bound.moved; })) { return guarded(group); }
    var cells = [], numbers = group.cells.numbers;
    for (var i = 0; i < numbers.length; i += 6) {
      cells.push([numbers[i], numbers[i + 1], numbers[i + 2] + (passing ? 0 : numbers[i + 4]),
        numbers[i + 3] + (passing ? 0 : numbers[i + 5])]);
    }
    return cells;
  }
  function kept(group, fraction, factor, passing) {
    var moved = passing && data.bounds.some(function (bound) { return bound.moved; });
    var axes = moved ? group.guarded : group.cells, order = [];
    counted(group, passing).forEach(function (cell) {
      var x = axes.from[0] + (cell[0] + 0.5) * axes.width[0];
      var y = axes.from[1] + (cell[1] + 0.5) * axes.width[1];
      var score = !data.two ? x : least ? Math.min(x, y + factor) : x + factor * y;
      if (cell[2] > 0) { order.push([score, cell[2], cell[3]]); }
    });
    order.sort(function (a, b) { return b[0] - a[0]; });
    var among = passing ? group.counted : group.counted_without_guards;
    var left = Math.floor(fraction * among + 1e-9), found = { samples: 0, tokens: 0, score: NaN };
    for (var j = 0; j < order.length && left > 0; j++) {
      var some = Math.min(left, order[j][1]);
      found.samples += some; left -= some;
      found.tokens += order[j][2] * some / order[j][1];
      found.score = order[j][0];
    }
    return found;
  }
  // Returns the guards with the moved bounds.
  function moved() {
    var all = JSON.parse(JSON.stringify(data.guards));
    data.bounds.forEach(function (bound) {
      if (!bound.moved) { return; }
      var guard = all[bound.guard], name = bound.high ? "max" : "min", value = end(bound);
      delete guard[name]; delete guard[name + "_quantile"];
      if (value !== null) { guard[bound.quantile ? name + "_quantile" : name] = value; }
      if (guard.min_quantile === undefined && guard.max_quantile === undefined) { delete guard.weigh; }
    });
    return all.filter(function (guard) {
      return ["min", "max", "min_quantile", "max_quantile"].some(function (name) { return guard[name] !== undefined; });
    });
  }
  function row(cells, tag) {
    var line = make("tr", "", table);
    cells.forEach(function (text) { make(tag || "td", text, line); });
  }
  function show() {
    var f = fraction(), by = factor(), passing = !guards || guards.checked;
    share.shown.textContent = " " + short(100 * f) + " %";
    if (ratio) { ratio.shown.textContent = " " + (least ? (by >= 0 ? "+ " : "− ") + short(Math.abs(by)) : short(by)); }
    data.bounds.forEach(function (bound) {
      var value = end(bound);
      bound.slider.shown.textContent = " " + (value === null ? "any" : short(value)) + (bound.moved ? "" : " (now)");
    });
    table.textContent = "";
    row(["group", data.samples + " kept", "now", "tokens kept", "now", "minimum score"], "th");
    var all = [0, 0, 0, 0];
    data.groups.forEach(function (group) {
      var found = kept(group, f, by, passing);
      row([group.name, count(found.samples), count(group.kept), count(found.tokens), count(group.tokens), short(found.score)]);
      [found.samples, group.kept, found.tokens, group.tokens].forEach(function (n, i) { all[i] += n; });
    });
    row(["all"].concat(all.map(count), [""]));
    var lines = [];
    if (ratio && by !== (least ? 0 : 1)) {
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
    if (data.guards.length) { lines.push("    guards: " + JSON.stringify(passing ? moved() : [])); }
    yaml.textContent = lines.join("\n");
  }
  show();
})();
