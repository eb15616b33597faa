import path from 'node:path';
import { describeAdapter, readBaseDigest } from '../../../engine/model/adapter-folder.ts';
import type { ServedPolicy } from '../../../core/rl/run-state.ts';

/** Names of versions at a vLLM server: `RUN:LINEAGE:STEP@DIGEST`. A name with the digest is never another version's. */

/** Label of a server's own weights. */
export interface WeightsLabel {
  readonly text: string;
  /** `RUN:LINEAGE:STEP`. */
  readonly name: string;
  readonly step: number;
  /** Its first digits. */
  readonly digest: string;
}

export interface ServedAdapter {
  /** Name under which it is loaded. */
  readonly name: string;
  /** The weights it was trained on. */
  readonly base: { readonly folder: string; readonly label: WeightsLabel };
}

const digestDigits = 12;

export function labelOf({ name, version }: Pick<ServedPolicy, 'name' | 'version'>): WeightsLabel {
  return labelWith(name, version.step, version.digest);
}

function labelWith(name: string, step: number, digest: string): WeightsLabel {
  const short = digest.slice(0, digestDigits);
  return { text: `${name}@${short}`, name, step, digest: short };
}

/** Label of weights that belong to no version: during an exchange, and after an interrupted one. */
export const noVersionLabel = 'unknown';

/** Null if the label is not ours: the server has its initial weights, or another owner's. */
export function labelRead(text: string): WeightsLabel | null {
  if (text === noVersionLabel) return { text, name: text, step: -1, digest: '' };
  const at = text.lastIndexOf('@');
  if (at < 0) return null;
  const name = text.slice(0, at);
  return { text, name, step: Number.parseInt(name.split(':').at(-1)!, 10), digest: text.slice(at + 1) };
}

/** Whether a server's weights are of a later step of the lineage that `policy` belongs to. */
export function isLaterOf(base: WeightsLabel, policy: ServedPolicy): boolean {
  return lineageOf(base.name) === lineageOf(policy.name) && base.step > policy.version.step;
}

/** The run of a version, an adapter or a label: of each the name begins with it. */
export function runOf(name: string): string {
  return name.split(':', 1)[0]!;
}

function lineageOf(name: string): string {
  return name.slice(0, name.lastIndexOf(':'));
}

const known = new Map<string, ServedAdapter | null>();
const knownMax = 64;

/** Null if a version's folder has whole weights. The content of a version's folder never changes. */
export async function adapterOf(policy: ServedPolicy): Promise<ServedAdapter | null> {
  const key = `${policy.folder} ${labelOf(policy).text}`;
  const before = known.get(key);
  if (before !== undefined) return before;
  const described = await describeAdapter(policy.folder);
  const found = described && {
    name: labelOf(policy).text,
    base: {
      folder: path.resolve(described.baseFolder),
      label: labelWith(`${lineageOf(policy.name)}:0`, 0, (await readBaseDigest(policy.folder)) ?? ''),
    },
  };
  known.set(key, found);
  if (known.size > knownMax) known.delete(known.keys().next().value!);
  return found;
}
