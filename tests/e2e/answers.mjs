// Answers as models write them, of any length.

const PART = (n) => `## Part ${n}: what the wind does to a pile of stones

A cairn stands because each stone rests on **three points**; with two it rocks, with four it *may* rock. See [the survey of ${1900 + (n % 100)}](https://example.org/survey/${n}) and \`stability_of(stone)\` below.[^${n % 9}] It costs $${n}, or $${n + 5} with tea, while $F_w = \\tfrac{1}{2} \\rho v^2 A_{${n}}$ is the force.

1. **Choose the ground.** Rock is better than gravel, and gravel better than grass:
   - look for a flat place of about ${n % 7} square metres,
   - take away what is loose.

   \`\`\`bash
   level --place ${n} | tee ground.txt
   \`\`\`
2. **Lay the first ring.** Large stones, their long side inwards.
3. **Fill the middle** with small ones.

| Height | Stones | Wind that it bears | Note |
|:-------|-------:|-------------------:|------|
| ${n % 5} m | ${n * 40} | 80 km/h | *usual* |
| ${(n % 5) + 1} m | ${n * 90} | 60 km/h | needs a wider base |
| ${(n % 5) + 2} m | ${n * 200} | 40 km/h | \`rare\` |

\`\`\`python
def stability_of(stone, others):
    """How far the centre of mass is inside of the base, in metres."""
    base = [other for other in others if other.touches(stone)]
    if len(base) < 3:
        return 0.0  # it rocks
    return min(edge.distance(stone.centre) for edge in hull(base))

for height in range(${(n % 9) + 1}):
    print(f"{height} m: {stability_of(stones[height], stones[:height]):.2f}")
\`\`\`

> A cairn that is not mended falls within ${(n % 40) + 3} years. The frost lifts what the rain has loosened.

$$
M = \\int_0^{h} F_w(z)\\, z \\, dz \\le m g \\frac{b}{2}
$$

`;

const CODE = (n) => `fn place_${n}(stones: &[Stone], height: usize) -> Result<Place, Error> {
    // The widest stone that is left, by its longest side.
    let widest = stones.iter().max_by(|a, b| a.width.total_cmp(&b.width)).ok_or(Error::Empty)?;
    let name = format!("stone {} of {}", ${n}, stones.len());
    if widest.width < MIN_WIDTH * height as f64 { return Err(Error::TooSmall(name)); }
    Ok(Place { stone: widest.clone(), height, angle: ${n}.5 })
}

`;

const ITEM = (n) => `${n + 1}. **Stone ${n}**: about ${n % 90} kg, found \`${n % 400} m\` away
   - carried by *two* people
   - laid on day ${n % 30}
`;

const SHAPES = { mixed: ['', PART], code: ['The program:\n\n```rust\n', CODE], list: ['All of them:\n\n', ITEM] };

/** A text of this shape with about so many characters. */
export function answerOf(shape, characters) {
  const [start, part] = SHAPES[shape];
  const parts = [start];
  for (let length = start.length, n = 1; length < characters; n++) {
    const next = part(n);
    parts.push(next);
    length += next.length;
  }
  return parts.join('');
}
