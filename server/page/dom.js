// Building elements. Text only ever becomes text nodes: nothing here, or anywhere on the page, parses markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-") || name === "role") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
  const field = element("textarea", { value: text, className: "hidden" }); // plain http on another host than localhost
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

export function copyButton(source, label) {
  const button = element("button", { type: "button", className: "quiet copy", textContent: "Copy" });
  button.setAttribute("aria-label", label);
  button.addEventListener("click", async () => {
    try {
      await copyText(source());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}
