//! Plots as SVG inside a page: lines over a linear or logarithmic axis, and stacked bars.
//!
//! Colours are classes that the page's style gives their values, so that one drawing serves light, dark and paper.

use std::fmt::Write;

use super::figures::significant;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 48.0;
/// Height of a bar, and of what lies between two.
const BAR: f64 = 22.0;
const GAP: f64 = 10.0;
/// Colours that the page's style has.
pub const COLOURS: usize = 9;
/// Dots that a line may have before it is drawn without them.
const DOTS_MAX: usize = 60;

pub struct Axis<'a> {
    pub title: &'a str,
    pub scale: Scale,
    /// Marks with texts of their own in the place of numbers.
    pub marks: Option<&'a [(f64, &'static str)]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// From 0 on.
    Linear,
    Log,
}

pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// One bar of stacked parts.
pub struct Bar {
    pub name: String,
    pub parts: Vec<f64>,
}

/// What an axis shows of its values.
#[derive(Debug, Clone, Copy)]
struct Span {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Span {
    fn of(scale: Scale, values: impl Iterator<Item = f64>) -> Span {
        let shown = values.filter(|value| value.is_finite() && (scale == Scale::Linear || *value > 0.0));
        let (low, high) = shown.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            return Span { scale, low: 1.0, high: 10.0 };
        }
        match scale {
            Scale::Linear => {
                let high = if high > 0.0 { high } else { 1.0 };
                Span { scale, low: 0.0, high: high * 1.05 }
            }
            Scale::Log => {
                let (low, high) = (low * 0.9, high * 1.1);
                Span { scale, low, high: high.max(low * 2.0) }
            }
        }
    }

    /// From 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low).ln() - self.low.ln()) / (self.high.ln() - self.low.ln()),
        };
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 }
    }

    fn ticks(&self) -> Vec<f64> {
        let mut ticks = Vec::new();
        match self.scale {
            Scale::Linear => {
                let raw = (self.high - self.low) / 5.0;
                let power = 10f64.powf(raw.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| *step >= raw);
                let step = step.unwrap_or(raw);
                ticks.extend((0..20).map(|number| f64::from(number) * step).take_while(|tick| *tick <= self.high));
            }
            Scale::Log => {
                let decades = (self.high / self.low).log10();
                let times: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
                let first = self.low.log10().floor() as i32;
                for exponent in first..first + 20 {
                    ticks.extend(times.iter().map(|times| times * 10f64.powi(exponent)));
                }
                ticks.retain(|tick| (self.low..=self.high).contains(tick));
            }
        }
        ticks
    }
}

/// Lines with a legend below.
pub fn lines(title: &str, x: &Axis<'_>, y: &Axis<'_>, series: &[Series]) -> String {
    let values = |pick: fn(&(f64, f64)) -> f64| series.iter().flat_map(move |series| series.points.iter().map(pick));
    let (across, up) = (Span::of(x.scale, values(|point| point.0)), Span::of(y.scale, values(|point| point.1)));
    let place_x = |value: f64| LEFT + across.place(value) * (WIDTH - LEFT - RIGHT);
    let place_y = |value: f64| HEIGHT - BOTTOM - up.place(value) * (HEIGHT - TOP - BOTTOM);
    let mut svg = open(title, HEIGHT);
    for tick in up.ticks() {
        let at = place_y(tick);
        let _ =
            write!(svg, "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>", WIDTH - RIGHT);
        let text = short(tick);
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    let marks: Vec<(f64, String)> = match x.marks {
        Some(marks) => {
            let shown = marks.iter().filter(|(value, _)| *value >= across.low && *value <= across.high);
            shown.map(|(value, text)| (*value, (*text).to_owned())).collect()
        }
        None => across.ticks().into_iter().map(|tick| (tick, short(tick))).collect(),
    };
    for (tick, text) in marks {
        let at = place_x(tick);
        let (foot, below) = (HEIGHT - BOTTOM, HEIGHT - BOTTOM + 16.0);
        let _ = write!(svg, "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{foot}\"/>");
        let _ = write!(svg, "<text class=\"tick\" x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{text}</text>");
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let _ = write!(
        svg,
        "<text class=\"axis\" x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        HEIGHT - 8.0,
        escape(x.title)
    );
    let half = (TOP + HEIGHT - BOTTOM) / 2.0;
    let _ = write!(
        svg,
        "<text class=\"axis\" transform=\"translate(14 {half}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        escape(y.title)
    );
    for (at, series) in series.iter().enumerate() {
        let colour = at % COLOURS;
        let shown = |&&(x_value, y_value): &&(f64, f64)| {
            x_value.is_finite() && y_value.is_finite() && (y.scale == Scale::Linear || y_value > 0.0)
        };
        let points: Vec<(f64, f64)> = series.points.iter().filter(shown).copied().collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{:.1},{:.1}", place_x(*x), place_y(*y))).collect();
        let _ = write!(svg, "<polyline class=\"line c{colour}\" points=\"{}\"/>", path.join(" "));
        if points.len() <= DOTS_MAX {
            for (x, y) in &points {
                let (cx, cy) = (place_x(*x), place_y(*y));
                let tip = format!("{}: {} at {}", series.name, significant(*y), significant(*x));
                let _ = write!(
                    svg,
                    "<circle class=\"dot c{colour}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\"><title>{}</title></circle>",
                    escape(&tip)
                );
            }
        }
    }
    svg.push_str("</svg>");
    svg.push_str(&legend(series.iter().map(|series| series.name.as_str())));
    svg
}

/// Horizontal bars of stacked parts, with a legend below.
pub fn bars(title: &str, unit: &str, names: &[&str], bars: &[Bar]) -> String {
    let most = bars.iter().map(|bar| bar.parts.iter().filter(|part| part.is_finite()).sum::<f64>()).fold(0.0, f64::max);
    let span = Span::of(Scale::Linear, std::iter::once(most));
    let label = 96.0;
    let place = |value: f64| label + span.place(value) * (WIDTH - label - RIGHT);
    let height = TOP + bars.len() as f64 * (BAR + GAP) + BOTTOM;
    let foot = height - BOTTOM;
    let mut svg = open(title, height);
    for tick in span.ticks() {
        let at = place(tick);
        let _ = write!(svg, "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{foot}\"/>");
        let (below, text) = (foot + 16.0, short(tick));
        let _ = write!(svg, "<text class=\"tick\" x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{text}</text>");
    }
    let (middle, bottom) = ((label + WIDTH) / 2.0, height - 8.0);
    let _ = write!(
        svg,
        "<text class=\"axis\" x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">{}</text>",
        escape(unit)
    );
    for (row, bar) in bars.iter().enumerate() {
        let top = TOP + row as f64 * (BAR + GAP) + GAP / 2.0;
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            label - 6.0,
            top + BAR / 2.0 + 4.0,
            escape(&bar.name)
        );
        let mut sum = 0.0;
        for (at, part) in bar.parts.iter().enumerate() {
            if !part.is_finite() {
                continue;
            }
            let (from, to) = (place(sum), place(sum + part.max(0.0)));
            sum += part.max(0.0);
            let name = names.get(at).copied().unwrap_or_default();
            let tip = format!("{name}: {} {unit}", significant(*part));
            let _ = write!(
                svg,
                "<rect class=\"part c{}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR}\"><title>{}\
                 </title></rect>",
                at % COLOURS,
                (to - from).max(0.0),
                escape(&tip)
            );
        }
    }
    svg.push_str("</svg>");
    svg.push_str(&legend(names.iter().copied()));
    svg
}

fn open(title: &str, height: f64) -> String {
    let title = escape(title);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\" \
         xmlns=\"http://www.w3.org/2000/svg\"><title>{title}</title>"
    )
}

fn legend<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::from("<ul class=\"legend\">");
    for (at, name) in names.enumerate() {
        let _ = write!(text, "<li><span class=\"key c{}\"></span>{}</li>", at % COLOURS, escape(name));
    }
    text.push_str("</ul>");
    text
}

/// `20k`, `1.5M`: what fits beside an axis.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1e9 => format!("{}G", significant(value / 1e9)),
        size if size >= 1e6 => format!("{}M", significant(value / 1e6)),
        size if size >= 1e4 => format!("{}k", significant(value / 1e3)),
        _ => significant(value),
    }
}

/// A text as it may stand in a page, in an attribute as well: names come from models, error texts from servers.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(' '),
            // Not allowed in a page at all, or turns the text around.
            letter if letter.is_control() || ('\u{202a}'..='\u{202e}').contains(&letter) => safe.push('\u{fffd}'),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let span = |scale, low: f64, high: f64| Span::of(scale, [low, high].into_iter()).ticks();
        assert_eq!(span(Scale::Linear, 0.0, 9.0), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(span(Scale::Log, 10.0, 500.0), [10.0, 20.0, 50.0, 100.0, 200.0, 500.0]);
        assert_eq!(span(Scale::Log, 1.0, 100_000.0), [1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0]);
        for (scale, low, high) in [
            (Scale::Linear, 0.0, 0.0),
            (Scale::Log, 0.0, 0.0),
            (Scale::Log, 5.0, 5.0),
            (Scale::Linear, f64::NAN, f64::INFINITY),
            (Scale::Linear, 1e-9, 1e12),
            (Scale::Log, 1e-6, 1e12),
        ] {
            let ticks = span(scale, low, high);
            assert!(ticks.len() <= 20 && !ticks.is_empty(), "{scale:?} {low} {high}: {ticks:?}");
        }
    }

    #[test]
    fn places_lie_in_the_plot() {
        for scale in [Scale::Linear, Scale::Log] {
            let span = Span::of(scale, [3.0, 300.0].into_iter());
            for value in [-1.0, 0.0, 3.0, 300.0, 1e9, f64::NAN, f64::INFINITY] {
                assert!((0.0..=1.0).contains(&span.place(value)), "{scale:?} {value}");
            }
            assert!(span.place(300.0) > span.place(3.0));
        }
    }

    #[test]
    fn foreign_texts_are_harmless() {
        assert_eq!(escape("<b onclick='x'>&\"\u{1b}\n"), "&lt;b onclick=&#39;x&#39;&gt;&amp;&quot;\u{fffd} ");
        let series = [Series { name: "<script>".into(), points: vec![(1.0, 2.0), (f64::NAN, 1.0)] }];
        let axis = || Axis { title: "</svg>", scale: Scale::Linear, marks: None };
        let svg = lines("\"><script>", &axis(), &axis(), &series);
        assert!(!svg.contains("<script") && svg.matches("</svg>").count() == 1 && !svg.contains("NaN"), "{svg}");
        let svg = bars("t", "us", &["<i>"], &[Bar { name: "<b>".into(), parts: vec![1.0, f64::NAN, -1.0] }]);
        assert!(!svg.contains("<b>") && !svg.contains("<i>") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn marks_may_have_texts() {
        let series = [Series { name: "s".into(), points: vec![(1.0, 2.0), (100.0, 3.0)] }];
        let x = Axis { title: "x", scale: Scale::Log, marks: Some(&[(1.0, "p0"), (100.0, "p99"), (1e6, "far")]) };
        let svg = lines("t", &x, &Axis { title: "y", scale: Scale::Log, marks: None }, &series);
        assert!(svg.contains(">p0<") && svg.contains(">p99<") && !svg.contains(">far<"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2);
    }
}
