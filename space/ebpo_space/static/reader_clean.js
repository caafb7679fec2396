// What a rendered text may hold: the tags of prose and of MathML, no address, no script, no style but sizes and colours.
// The worker makes nothing else; if a renderer had a fault, it would end here.
window.space.clean = (() => {
  "use strict";
  const split = (text) => text.split(" ");
  const ALLOWED_TAGS = split("p br hr strong em s code pre blockquote ul ol li table thead tbody tr th td span div " +
    "math mrow mi mn mo ms mtext mspace mfrac msqrt mroot msub msup msubsup mover munder munderover mmultiscripts mprescripts " +
    "mtable mtr mtd mpadded mphantom menclose mstyle merror");
  const ALLOWED_ATTR = split("class style start data-tex display displaystyle scriptlevel mathvariant stretchy fence form separator " +
    "lspace rspace width height depth voffset linethickness rowspacing columnspacing columnalign rowlines columnlines rowspan " +
    "columnspan accent accentunder movablelimits minsize maxsize symmetric largeop notation encoding");
  const CLASS = /^(?:tex|block|long|source|wide|heading|h[1-6]|mathscr|mathcal|menclose|tml-[a-z-]+|chr-[a-z-]+|wbk-[a-z-]+|ff-[a-z-]+|upstrike|downstrike|sout|phasor-[a-z]+|longdiv-[a-z]+|textcircle|circle-pad|actuarial|oval|hline|special-fraction)$/;
  const SIZE = String.raw`-?\d{0,2}(?:\.\d+)?(?:em|ex|pt|px|%)?`;
  const STYLE = new RegExp(String.raw`^(?:color:\s*#[0-9a-f]{3,8}|(?:padding|margin)(?:-(?:left|right|top|bottom))?:\s*${SIZE}(?:\s+${SIZE}){0,3}|` +
    String.raw`(?:width|height|min-width|font-size|vertical-align):\s*${SIZE}|border(?:-(?:left|right|top|bottom))?:\s*${SIZE}\s+(?:solid|dashed)(?:\s+currentcolor)?|` +
    String.raw`text-align:\s*(?:-webkit-)?(?:left|right|center)|display:\s*block math|math-(?:depth|style|shift):\s*[\w-]+|white-space:\s*[\w-]+)$`, "i");
  const LENGTHS = new Set(split("lspace rspace width height depth voffset linethickness minsize maxsize"));
  const LENGTH = new RegExp(`^${SIZE}$`);

  const attribute = (node, data) => {
    if (data.attrName === "class") data.attrValue = data.attrValue.split(/\s+/).filter((name) => CLASS.test(name)).join(" ");
    if (data.attrName === "style") data.attrValue = data.attrValue.split(";").filter((one) => STYLE.test(one.trim())).join(";");
    if (LENGTHS.has(data.attrName) && !LENGTH.test(data.attrValue)) data.keepAttr = false;
    if (!data.attrValue) data.keepAttr = false;
  };

  let purify = null;
  /** HTML of the worker as a DocumentFragment. DOMPurify must have been loaded. */
  return (html) => {
    if (!purify) {
      purify = window.DOMPurify(window);
      purify.addHook("uponSanitizeAttribute", attribute);
    }
    return purify.sanitize(html, {
      ALLOWED_TAGS, ALLOWED_ATTR, ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, ALLOW_UNKNOWN_PROTOCOLS: false,
      RETURN_DOM_FRAGMENT: true, SANITIZE_NAMED_PROPS: true, KEEP_CONTENT: true,
    });
  };
})();
