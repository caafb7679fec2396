"""Names of LaTeX symbols and what they look like."""

from __future__ import annotations


def _pairs(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


LETTERS = _pairs("""
    alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ mu μ
    nu ν xi ξ pi π rho ρ sigma σ tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ
    Xi Ξ Pi Π Sigma Σ Phi Φ Psi Ψ Omega Ω ell ℓ infty ∞ partial ∂ emptyset ∅ nabla ∇ hbar ℏ Re ℜ Im ℑ prime ′
""")
OPERATORS = _pairs("""
    cdot ⋅ times × div ÷ pm ± mp ∓ le ≤ leq ≤ ge ≥ geq ≥ ne ≠ neq ≠ approx ≈ equiv ≡ sim ∼ cong ≅ to → rightarrow →
    leftarrow ← Rightarrow ⇒ implies ⟹ iff ⟺ Leftrightarrow ⇔ in ∈ notin ∉ subset ⊂ subseteq ⊆ cup ∪ cap ∩ setminus ∖
    forall ∀ exists ∃ mid ∣ nmid ∤ parallel ∥ perp ⊥ angle ∠ triangle △ circ ∘ cdots ⋯ ldots … dots … vdots ⋮ sum ∑
    prod ∏ int ∫ oint ∮ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ langle ⟨ rangle ⟩ ast ∗ star ⋆ land ∧ lor ∨ neg ¬ lnot ¬
    propto ∝ therefore ∴ because ∵ mapsto ↦ degree ° backslash ∖ colon : bullet • oplus ⊕ otimes ⊗ lvert | rvert |
    vert | | ‖
""")
ACCENTS = _pairs("overline ¯ bar ¯ hat ^ widehat ^ vec → tilde ~ dot ˙ overrightarrow →")
DOUBLE_STRUCK = _pairs("R ℝ N ℕ Z ℤ Q ℚ C ℂ P ℙ")
FENCES = {
    **{"matrix": "", "pmatrix": "()", "bmatrix": "[]", "vmatrix": "||", "cases": "{", "aligned": "", "align": ""},
    **{"align*": "", "array": "", "gathered": ""},
}
SPACES = {",": 0.17, ";": 0.28, ":": 0.22, "!": 0.0, " ": 0.25, "quad": 1.0, "qquad": 2.0}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LIMITS = _names("sum prod lim max min")  # their sub- and superscripts are set as limits, below and above
FUNCTIONS = _names("""
    sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp lim max min gcd lcm det dim mod deg sup inf
""")
TEXT = _names("text textbf mathrm operatorname textit mathit mathbf mathbb mathcal mbox textrm boldsymbol")
FRACTIONS = _names("frac dfrac tfrac cfrac")
SIZES = _names("left right big Big bigg Bigg displaystyle limits middle bigl bigr")
