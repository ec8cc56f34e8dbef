// What a run wrote, with its colours. Everything else that a terminal would obey is dropped.

const START = { bold: false, dim: false, italic: false, underline: false, colour: null };

/** Turns pieces of output into nodes; what is cut in the middle of a sequence waits for the rest. */
export class Ansi {
  constructor() {
    this.style = { ...START };
    this.rest = "";
  }

  /** The nodes of a piece. */
  nodes(text) {
    text = this.rest + text;
    this.rest = "";
    const cut = /\x1b(\[[0-9;:?]*|\][^\x07\x1b]{0,200}|)$/.exec(text);
    if (cut) {
      this.rest = cut[0];
      text = text.slice(0, cut.index);
    }
    const nodes = [];
    const sequence = /\x1b\[([0-9;:]*)m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\^_]|\x1b/g;
    let at = 0;
    for (let found; (found = sequence.exec(text)); at = sequence.lastIndex) {
      this.push(nodes, text.slice(at, found.index));
      if (found[1] !== undefined) this.set(found[1]);
    }
    this.push(nodes, text.slice(at));
    return nodes;
  }

  push(nodes, text) {
    // A line that is written over shows what it came to; what cannot be seen is not shown.
    text = overwritten(text).replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/g, "");
    if (!text) return;
    const node = document.createElement("span");
    node.textContent = text;
    const { bold, dim, italic, underline, colour } = this.style;
    node.className = [bold && "b", dim && "d", italic && "i", underline && "u", Number.isInteger(colour) && `f${colour}`]
      .filter(Boolean)
      .join(" ");
    if (typeof colour === "string") node.style.color = colour;
    nodes.push(node);
  }

  set(codes) {
    const numbers = codes.split(/[;:]/).map((code) => Number(code || 0));
    for (let i = 0; i < numbers.length; i++) {
      const code = numbers[i];
      if (code === 0) this.style = { ...START };
      else if (code === 1) this.style.bold = true;
      else if (code === 2) this.style.dim = true;
      else if (code === 3) this.style.italic = true;
      else if (code === 4) this.style.underline = true;
      else if (code === 22) this.style.bold = this.style.dim = false;
      else if (code === 23) this.style.italic = false;
      else if (code === 24) this.style.underline = false;
      else if (code >= 30 && code <= 37) this.style.colour = code - 30;
      else if (code >= 90 && code <= 97) this.style.colour = code - 90;
      else if (code === 39) this.style.colour = null;
      else if (code === 38 && numbers[i + 1] === 5) {
        this.style.colour = palette(numbers[i + 2]);
        i += 2;
      } else if (code === 38 && numbers[i + 1] === 2) {
        const [r, g, b] = numbers.slice(i + 2, i + 5).map((n) => Math.min(255, n || 0));
        this.style.colour = `rgb(${r} ${g} ${b})`;
        i += 4;
      } else if (code === 48) i += numbers[i + 1] === 5 ? 2 : 4;
    }
  }
}

/** What is left of lines whose beginning was written over: what stands behind their last carriage return. */
function overwritten(text) {
  if (!text.includes("\r")) return text;
  const lines = text.split("\n");
  return lines
    .map((line, i) => {
      const whole = i < lines.length - 1 && line.endsWith("\r") ? line.slice(0, -1) : line;
      return whole.slice(whole.lastIndexOf("\r") + 1);
    })
    .join("\n");
}

/** One of the 256 colours. */
function palette(n = 0) {
  if (n < 16) return n % 8;
  if (n >= 232) return `rgb(${Array(3).fill(8 + (n - 232) * 10).join(" ")})`;
  const level = (part) => (part ? 55 + part * 40 : 0);
  const index = n - 16;
  return `rgb(${level(Math.floor(index / 36))} ${level(Math.floor(index / 6) % 6)} ${level(index % 6)})`;
}
