import { realpath } from 'node:fs/promises';
import path from 'node:path';
import type { KeyPath } from '../../config/toml/positions.ts';
import { codeOf, type CodeRef, type RunSpec } from '../../config/run-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import { codeOfAdvantage } from '../../core/rl/learning/advantage.ts';
import { isEnvironmentFile } from '../../core/names.ts';
import { NotAFile, readRegular, whyUnreadable } from '../../host/regular-file.ts';
import { trustedFile } from '../../host/trusted-files.ts';
import { sha256 } from '../../store/file-store.ts';
import { Refused, type Tried } from '../refused.ts';
import { isBelow } from '../sent-files.ts';

/** Files with code that a run file names: of the trainer, of inference, of a loss, of environments. */

/** Code of the user's that a run executes in the trainer or the workers. */
export async function readCodeOf(
  { loss, advantage, trainer, inference }: RunSpec,
  folder: string,
  tried: Tried,
): Promise<Record<'loss' | 'advantage' | 'trainer' | 'inference', CodeRef | null>> {
  const read = async (ref: CodeRef | null, ...at: KeyPath): Promise<CodeRef | null> =>
    ref && tried([at, [...at.slice(0, -1), 'path']], () => readCode(ref, folder));
  return {
    loss: await read(loss.import, 'trainer', 'loss', 'import'),
    advantage: await read(codeOfAdvantage(advantage), 'trainer', 'advantage', 'import'),
    trainer: await read(codeOf(trainer), 'trainer', 'import'),
    inference: await read(codeOf(inference), 'inference', 'import'),
  };
}

interface ReadEnvironments {
  readonly trained: RunSpec['environments'];
  readonly evaluated: NonNullable<RunSpec['eval']>['environments'];
  /** Distinct files among them. */
  readonly files: readonly CodeRef[];
}

/** Environments that are files: their paths and present contents. */
export async function readEnvironments(
  { trained, evaluated }: Omit<ReadEnvironments, 'files'>,
  folder: string,
  tried: Tried,
): Promise<ReadEnvironments> {
  const files = new Map<string, CodeRef>();
  const withFile = async <Entry extends { readonly id: string; readonly sha256?: string | undefined }>(
    entry: Entry,
    ...names: KeyPath[]
  ): Promise<Entry> => {
    if (!isEnvironmentFile(entry.id)) return entry;
    const found = await tried(names, () => readCode({ path: entry.id }, folder));
    if (!found) return entry;
    files.set(found.path, found);
    return { ...entry, id: found.path, ...(found.sha256 === null ? {} : { sha256: found.sha256 }) };
  };
  return {
    trained: await Promise.all(trained.map((entry, i) => withFile(entry, ['env', i, 'id']))),
    // defaults to the trained environments
    evaluated: await Promise.all(
      evaluated.map((entry, i) => withFile(entry, ['eval', 'env', i, 'id'], ['env', i, 'id'])),
    ),
    files: [...files.values()],
  };
}

export function withCode<Spec extends { readonly kind: string }>(spec: Spec, code: CodeRef | null): Spec {
  return code === null ? spec : { ...spec, import: code };
}

/** Looks at a file of the user's code without running it. A relative path stays in the config's folder, also through links. */
export async function readCode({ path: written }: Pick<CodeRef, 'path'>, folder: string): Promise<CodeRef> {
  const absolute = path.resolve(folder, written);
  const refuse = (received: string, cause?: unknown): Refused =>
    new Refused({ expected: 'a file with code beside or below the config, or an absolute path', received }, cause);
  const isInside = path.isAbsolute(written) || isBelow(folder, absolute);
  if (!isInside) throw refuse(`${JSON.stringify(written)} leads out of ${folder}`);
  try {
    if (!path.isAbsolute(written) && !isBelow(await realpath(folder), await realpath(absolute))) {
      throw refuse(`${JSON.stringify(written)} is a link that leads out of ${folder}`);
    }
    return { path: absolute, sha256: sha256(await readRegular(trustedFile(absolute, 'The code'))) };
  } catch (cause) {
    if (cause instanceof RatchetError && !(cause instanceof NotAFile)) throw cause;
    throw refuse(`${absolute}: ${whyUnreadable(cause)}`, cause);
  }
}

export function runsCode({ path: file, sha256: digest }: CodeRef): string {
  return `this run executes code of its own: ${file} (sha256 ${digest?.slice(0, 12)}…). Read it before you start a config that is not yours.`;
}
