import { promisify } from 'node:util';
import { deflateRaw, inflateRaw } from 'node:zlib';
import type { ScoredGroup, ScoredRollout } from '../../core/rl/rollout/rollout.ts';
import { type Segment, spoiledIndex } from './block.ts';

/** Rollouts whose texts are compressed together: one list of results opens a few segments. */
const rowsOfSegment = 64;
/** Characters of a rollout that the index keeps for search and lists; the rollout's object has all. */
const charsKept = { asked: 2_000, said: 32_000 } as const;

const [pack, unpack] = [promisify<Uint8Array, Buffer>(deflateRaw), promisify<Uint8Array, Buffer>(inflateRaw)];

/** Prompt and answer of a rollout as the index keeps them. */
export interface RolloutText {
  readonly asked: string;
  readonly said: string;
}

const between = '\u0001';
const after = '\u0000';

/**
 * Searchable text of a rollout: the example's last question, and all turns with the environment's messages between
 * them.
 */
export function textOf(group: ScoredGroup, rollout: ScoredRollout): RolloutText {
  const asked = group.example?.prompt.findLast(({ role }) => role === 'user')?.content ?? '';
  const said = rollout.turns.flatMap(({ heard = [], text }) => [...heard.map(({ content }) => content), text]);
  return { asked: asked.slice(0, charsKept.asked), said: said.join('\n').slice(0, charsKept.said) };
}

/** Texts in row order, compressed in consecutive segments. */
export async function encodeTexts(
  texts: readonly RolloutText[],
): Promise<{ readonly bytes: Uint8Array; readonly segments: readonly Segment[] }> {
  const starts = Array.from({ length: Math.ceil(texts.length / rowsOfSegment) }, (_, i) => i * rowsOfSegment);
  const packed = await Promise.all(
    starts.map((start) => {
      const rows = texts.slice(start, start + rowsOfSegment);
      return pack(Buffer.from(rows.map(({ asked, said }) => clean(asked) + between + clean(said)).join(after)));
    }),
  );
  let at = 0;
  const segments = packed.map(({ byteLength }, i) => {
    const segment = { row: starts[i]!, at, bytes: byteLength };
    at += byteLength;
    return segment;
  });
  return { bytes: Buffer.concat(packed), segments };
}

/** A segment as one text, so that a search splits it only when the text occurs in it. */
export async function unpackSegment(bytes: Uint8Array, where: string): Promise<string> {
  try {
    return (await unpack(bytes)).toString('utf8');
  } catch (cause) {
    throw spoiledIndex(where, 'expected compressed texts of rollouts, found other bytes', cause);
  }
}

export function textsOfSegment(unpacked: string): RolloutText[] {
  return unpacked.split(after).map((text) => {
    const [asked = '', said = ''] = text.split(between);
    return { asked, said };
  });
}

/** Removes the two separator characters from a text. */
function clean(text: string): string {
  // oxlint-disable-next-line no-control-regex
  return text.replaceAll(/[\u0000\u0001]/g, ' ');
}
