"use strict";
(async () => {
    const item = JSON.parse(document.getElementById("data").textContent);
    const [view] = await Bokeh.embed.embed_item(item, "plots");
    const root = view.model, plots = root.children, source = root.select_one("jobs"), kept = root.select_one("kept");
    const data = source.data, form = document.getElementById("filter"), count = document.getElementById("count");

    // Plots are canvases: the page's colours have to be set on their parts.
    const style = () => getComputedStyle(document.documentElement);
    const paint = () => {
        const colour = (name) => style().getPropertyValue(`--${name}`).trim();
        for (const plot of plots) {
            for (const part of [...plot.left, ...plot.below, ...plot.center, plot.title]) {
                if (part.type === "Grid") part.grid_line_color = colour("line");
                else if (part.type === "Title") part.text_color = colour("text");
                else part.setv({
                    axis_line_color: colour("faint"), major_tick_line_color: colour("faint"),
                    minor_tick_line_color: null, major_label_text_color: colour("text"), axis_label_text_color: colour("faint"),
                });
            }
            for (const {glyph, name} of plot.renderers)
                if (name === "held" || name === "used") glyph.setv({fill_color: {value: colour(name)}, line_color: {value: null}});
        }
    };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
    matchMedia("print").addEventListener("change", paint);
    paint();

    // Labels of dates take about this many pixels; on paper nothing could be drawn anew, so it is scaled.
    const place = document.getElementById("plots");
    const fit = () => {
        for (const plot of plots) plot.below[0].ticker.desired_num_ticks = Math.max(2, Math.floor(place.clientWidth / 120));
    };
    new ResizeObserver(fit).observe(place);
    addEventListener("beforeprint", () => { place.style.zoom = Math.min(1, 700 / place.clientWidth); });
    addEventListener("afterprint", () => { place.style.zoom = ""; });

    // With a finger, a drag scrolls the page; the toolbar still has the tools.
    if (matchMedia("(pointer: coarse)").matches)
        for (const {toolbar} of plots) if (toolbar.gestures.pan.active) toolbar.gestures.pan.active.active = false;

    const lists = [...form.querySelectorAll("select")];
    for (const list of lists)
        for (const each of [...new Set(data[list.name])].sort()) list.append(new Option(each, each));
    const filter = () => {
        const word = form.elements.word.value.toLowerCase();
        const wanted = lists.filter((list) => list.selectedIndex > 0).map((list) => [data[list.name], list.value]);
        kept.booleans = Array.from(data.name, (name, i) =>
            (!word || name.toLowerCase().includes(word) || data.id[i].startsWith(word))
            && wanted.every(([values, value]) => values[i] === value));
        const all = new Set(data.id).size, shown = new Set(Array.from(data.id).filter((_, i) => kept.booleans[i])).size;
        const [some, every] = [shown, all].map((number) => number.toLocaleString("en"));
        count.textContent = `${shown === all ? "all" : `${some} of`} ${every} jobs with a GPU`;
    };
    form.addEventListener("input", filter);
    form.addEventListener("reset", () => setTimeout(filter));
    form.addEventListener("submit", (event) => event.preventDefault());
    filter();
    document.documentElement.dataset.drawn = "yes";
})();
