import path from 'node:path';
import { layout } from '../layout.ts';
import { minuteOf } from '../../core/minute-of.ts';
import type { ObjectRef } from '../../core/rl/run-state.ts';
import { settingsWithoutResume } from '../../config/resume-words.ts';
import type { EnvironmentSpec, RunSpec } from '../../config/run-spec.ts';
import type { SpecSource } from './spec-source.ts';
import { sha256 } from '../../store/file-store.ts';
import { openRunStore } from '../../store/index.ts';
import { encodeSettings, encodeStored } from './stored-forms.ts';
import { runRecordIn } from './record-shapes.ts';
import { refuseOtherIdentity } from '../run-identity.ts';
import type { ForkOrigin } from '../lineages/unfinished-fork.ts';

/** Stores the settings and their source, if they belong to the existing run. */
export async function recordSettings(
  projectFolder: string,
  {
    config,
    over = [],
    dialect,
    overrides = {},
  }: Pick<SpecSource, 'config' | 'over' | 'dialect'> & Partial<Pick<SpecSource, 'overrides'>>,
  { spec, sftRows, chatTemplate, attempt }: Settings & { readonly attempt: number },
): Promise<{ readonly ref: ObjectRef; readonly changed: readonly string[] }> {
  const store = openRunStore(spec.store.uri, spec.name);
  const first = await store.putIfAbsent(layout.run(), encodeStored(layout.run(), runRecord(spec)));
  const begun = runRecordIn(first.bytes, store.uri + layout.run());
  refuseOtherIdentity(spec, begun, store.uri);
  // checked against the digest in the identity
  if (sftRows) await store.put(layout.sftData(), sftRows);
  if (chatTemplate !== null) await store.put(layout.chatTemplate(), Buffer.from(chatTemplate));
  const bytes = encodeSettings(spec);
  const ref = await store.put(layout.spec(sha256(bytes)), bytes);
  const source: SpecSource = {
    config: path.resolve(projectFolder, config),
    ...(over.length === 0
      ? {}
      : { over: over.map((layer) => ({ ...layer, file: path.resolve(projectFolder, layer.file) })) }),
    ...(dialect === undefined ? {} : { dialect }),
    overrides: settingsWithoutResume(overrides),
    attempt,
  };
  const key = layout.source(ref.key);
  await store.put(key, encodeStored(key, source));
  return { ref, changed: changedEnvironments(spec, begun) };
}

/** `run.json`: the record of a run, shared by all its lineages. */
export interface RunRecord {
  readonly name: string;
  /** Creation time, in the format of `minuteOf`; missing for runs from before this field. */
  readonly begunAt?: string;
  readonly fork?: ForkOrigin;
  /** The run's settings at its creation. */
  readonly spec: RunSpec;
}

/** `run.json` of a run that begins now. */
function runRecord(spec: RunSpec): RunRecord {
  return { name: spec.name, begunAt: minuteOf(new Date()), spec };
}

/** Messages about environments whose files or packages have changed since the run began. */
function changedEnvironments(now: RunSpec, begun: RunSpec): string[] {
  return now.environments.flatMap((entry) => {
    const before = begun.environments.find(({ name }) => name === entry.name);
    const [was, is] = [before && madeOf(before), madeOf(entry)];
    if (was === is || !was || !is) return [];
    return `the environment ${entry.name} was changed since this run began: ${entry.id} had ${was}, now ${is}. The run continues with it as it is now; rewards before and after may not compare.`;
  });
}

/** Source of an environment that is not built in, as text. */
function madeOf({ sha256, python, program }: EnvironmentSpec): string | undefined {
  if (program !== undefined) {
    const { tasks, sandbox, score } = program;
    const named = { tasks, files: sandbox.files, 'score.files': score.files, 'score.function': score.function };
    const digests = Object.entries(named).flatMap(([name, file]) => (file ? [`${name} ${file.sha256?.slice(0, 12)}…`] : [])); // prettier-ignore
    return digests.join(', ');
  }
  if (sha256 !== undefined) return `sha256 ${sha256.slice(0, 12)}…`;
  if (python === undefined) return undefined;
  const files = python.sha256 === undefined ? '' : ` (sha256 ${python.sha256.slice(0, 12)}…)`;
  return `version ${python.version}${files} with verifiers ${python.verifiers}`;
}

export interface Settings {
  readonly spec: RunSpec;
  readonly warnings: readonly string[];
  /** The rows of `[sft] data`, unless they are stored. */
  readonly sftRows: Uint8Array | null;
  /** The text of `[tokenizer] chat_template`, unless it is stored. */
  readonly chatTemplate: string | null;
  /** `[ckpt] resume_step` */
  readonly resumeStep: number | null;
}
