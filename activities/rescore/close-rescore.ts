import { appendFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import type { EvaluationInput, EvaluationTally, StoredEvaluation } from '../../core/eval/evaluation.ts';
import { evaluationMetadata } from '../../core/eval/metadata.ts';
import type {
  JudgeUse,
  RescoredEnvironment,
  RescoreHandle,
  RescoreResult,
  StoredRescore,
  StoredRescoredChunk,
} from '../../core/eval/rescore.ts';
import {
  addFigures,
  correlationOf,
  meanOf,
  noFigures,
  rankAgreementOf,
  type RescoreFigures,
} from '../../core/eval/rescore-figures.ts';
import { addTallies, emptyTally } from '../../core/eval/tally.ts';
import { RatchetError } from '../../core/errors.ts';
import { groupSizeOf } from '../../core/rl/learning/selection.ts';
import type { ObjectRef } from '../../core/rl/run-state.ts';
import { showStoreUri } from '../../store/index.ts';
import { encodeJson, unpacked } from '../../store/objects.ts';
import { inTemporaryFolder } from '../../host/temporary-folder.ts';
import { decodeStored, encodeStored } from '../../runs/forms/stored-forms.ts';
import { rescoreKeys, storedRescore } from '../../runs/rescores/rescore-store.ts';
import { readJson, specOf, storeOf } from '../../runs/run-access.ts';
import { withHeartbeat } from '../around/heartbeat.ts';

interface CloseRescoreInput {
  readonly handle: RescoreHandle;
  readonly judge: JudgeUse;
  readonly seconds: number;
}

interface Collected {
  figures: RescoreFigures;
  tally: EvaluationTally;
  examples: number;
  readonly rows: ObjectRef[];
}

/**
 * Writes the results of each environment, as of an evaluation, and the summary. Reads one part at a time. Idempotent:
 * the first summary stays.
 */
export async function closeRescore({ handle, judge, seconds }: CloseRescoreInput): Promise<RescoreResult> {
  return withHeartbeat(async () => {
    const { place, name, rubric } = handle;
    const store = storeOf(place);
    const rescore = await storedRescore(handle);
    const collected = await collect(handle);
    const environments: RescoredEnvironment[] = [];
    for (const [environment, of] of collected) {
      const about = await evaluationOf(rescore, environment);
      const folder = rescoreKeys.results(place, environment, about.model.model);
      await writeRows(handle, `${folder}results.jsonl`, of.rows);
      const { examples, tally, figures } = of;
      const metadata = evaluationMetadata({ input: about, examples, tally, seconds: 0, tools: null });
      const rescored = { rubric, of: name, avg_reward_before: meanOf(figures.before) };
      await store.put(`${folder}metadata.json`, encodeJson({ ...metadata, rescored }));
      environments.push(changesOf(environment, figures, absolute(store.uri, folder)));
    }
    const sum = (read: (one: RescoredEnvironment) => number): number =>
      environments.reduce((total, one) => total + read(one), 0);
    const result: RescoreResult = {
      id: path.posix.basename(place.prefix),
      place,
      folder: absolute(store.uri, place.prefix),
      name,
      rubric,
      rollouts: sum((one) => one.rollouts),
      rescored: sum((one) => one.rescored),
      changed: sum((one) => one.changed),
      environments,
      judge,
      seconds,
    };
    const key = rescoreKeys.summary(place);
    const { bytes } = await store.putIfAbsent(key, encodeStored(key, result));
    return decodeStored<RescoreResult>(bytes, key);
  });
}

/** Figures by environment. Chunks are added in their order, since sums of floats depend on it. */
async function collect({ place, chunks }: RescoreHandle): Promise<Map<string, Collected>> {
  const collected = new Map<string, Collected>();
  for (let chunk = 0; chunk < chunks; chunk++) {
    const key = rescoreKeys.chunk(place, chunk);
    const bytes = await storeOf(place).read(key);
    if (bytes === null) throw new RatchetError('CheckpointDamaged', `${storeOf(place).uri}${key} is missing: remove the rescore's folder and type the command again.`); // prettier-ignore
    const { environments } = decodeStored<StoredRescoredChunk>(bytes, key);
    for (const [name, { figures, tally, examples, rows }] of Object.entries(environments)) {
      const own = collected.get(name) ?? { figures: noFigures, tally: emptyTally, examples: 0, rows: [] };
      own.figures = addFigures(own.figures, figures);
      own.tally = addTallies(own.tally, tally);
      own.examples += examples;
      own.rows.push(...rows);
      collected.set(name, own);
    }
  }
  return collected;
}

async function writeRows({ place }: RescoreHandle, key: string, rows: readonly ObjectRef[]): Promise<void> {
  const store = storeOf(place);
  await inTemporaryFolder('rescore', async (folder) => {
    const file = path.join(folder, 'results.jsonl');
    await writeFile(file, '');
    for (const ref of rows) await appendFile(file, unpacked(await store.get(ref), ref.key));
    await store.putFile(key, file);
  });
}

type About = Pick<EvaluationInput, 'environment' | 'model' | 'rolloutsPerExample' | 'shuffleSeed' | 'prices'>;

/** The evaluation that the rollouts of one environment are shown as. */
async function evaluationOf({ input, of }: StoredRescore, name: string): Promise<About> {
  const { subject } = input;
  if (subject.kind === 'evaluation') {
    return (await readJson<StoredEvaluation>(subject.place, of.spec)).input;
  }
  if (of.kind !== 'run') throw new Error('a rescore of a run is about its scored objects');
  const spec = await specOf({ name: subject.name, store: subject.store, spec: of.spec, lineage: '', attempt: 1 });
  const { maxTokens, temperature } = spec.sampling;
  const sampling = { max_tokens: maxTokens, temperature };
  return {
    environment: input.environments.find((one) => one.name === name)!,
    model: { kind: 'endpoint', model: subject.name, servers: [], sampling },
    rolloutsPerExample: groupSizeOf(spec, name),
    shuffleSeed: null,
  };
}

function changesOf(environment: string, figures: RescoreFigures, folder: string): RescoredEnvironment {
  const { rollouts, rescored, changed, failedBefore, failedAfter, largest } = figures;
  return {
    environment,
    rollouts,
    rescored,
    changed,
    failedBefore,
    failedAfter,
    largest,
    before: meanOf(figures.before),
    after: meanOf(figures.after),
    rankAgreement: rankAgreementOf(figures),
    correlation: correlationOf(figures),
    folder,
  };
}

function absolute(uri: string, prefix: string): string {
  return `${showStoreUri(uri)}${prefix}`.replace(/\/$/, '');
}
