/** A run file of another system on recorded rollouts, which `test/data/golden-runs` compares with that system. */
import assert from 'node:assert/strict';
import { cp, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { gunzipSync } from 'node:zlib';
import { present } from '../../core/present.ts';
import { resolveStoreUri } from '../../store/index.ts';
import { putJson, putRows } from '../../store/objects.ts';
import { OnnxTrainer } from '../../backends/trainer/onnx.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { ScoredGroup, ScoredRollout, Turn } from '../../core/rl/rollout/rollout.ts';
import type { ObjectRef, StepPlan } from '../../core/rl/run-state.ts';
import { presetFiles } from '../../engine/index.ts';
import { openBatch } from '../../runs/rollouts/batches.ts';
import { readJson, storeOf } from '../../runs/run-access.ts';
import { act, commitFirst, type Committed, openRoles, type Roles, type TestRun } from './runs.ts';

export const goldenFolder = fileURLToPath(new URL('../data/golden-runs/', import.meta.url));

/** Format written by `recording.py`. */
export interface GoldenRow {
  readonly tokens: readonly number[];
  readonly mask: readonly number[];
  readonly advantages: readonly number[];
  /** The packed sequence of a supervised row in its step; else the rollout, when it has several rows. */
  readonly sequence?: number;
}

export interface GoldenStep {
  readonly rows: readonly GoldenRow[];
  readonly loss: number;
  readonly gradientNorm: number;
  readonly learningRate: number;
  readonly entropy: number;
  readonly masked: number;
}

/** Format written by `make_rollouts.py`. */
interface RecordedRollout {
  readonly turns: readonly {
    readonly prompt: readonly number[];
    readonly completion: readonly number[];
    readonly logprobs: readonly number[];
  }[];
  readonly reward: number;
  readonly rewrites?: true;
  readonly fails?: true;
}

type RecordedStep = readonly (readonly RecordedRollout[])[];

/** Features of the recorded rollouts that a peer lacks. */
export interface Without {
  /** Its rollouts do not fail: those that would have their reward. */
  readonly failures?: boolean;
  /** Its conversations never rewrite the past: of those that do there is the first turn. */
  readonly rewriting?: boolean;
}

export async function goldenText(file: string): Promise<string> {
  return readFile(path.join(goldenFolder, file), 'utf8');
}

async function recorded<T>(file: string): Promise<T> {
  return JSON.parse(gunzipSync(await readFile(path.join(goldenFolder, file))).toString()) as T;
}

/** The peer's step, with the figures that it has. */
type PeerStep = Pick<GoldenStep, 'rows'> & Partial<GoldenStep>;

export async function goldenSteps(name: string): Promise<readonly PeerStep[]> {
  return (await recorded<{ steps: readonly PeerStep[] }>(`${name}.json.gz`)).steps;
}

/** Every recorded step of the run, through the real activities and the embedded engine. */
export async function playGolden(t: TestContext, spec: RunSpec, without: Without = {}): Promise<GoldenStep[]> {
  const root = await mkdtemp(path.join(tmpdir(), 'ratchet-golden-'));
  t.after(() => rm(root, { recursive: true, force: true }));
  const test = await openGolden(root, spec);
  const roles = openRoles(undefined, { engine: () => new OnnxTrainer({ threads: 1 }) });
  t.after(() => roles.policyTrainer.close());
  let from = await commitFirst(test, roles);
  const played: GoldenStep[] = [];
  for (const groups of await recorded<readonly RecordedStep[]>('rollouts.json.gz')) {
    const { step, next } = await playStep(test, roles, { from, groups, without });
    played.push(step);
    from = next;
  }
  return played;
}

/** The file's run, of a tiny model in place of its own. */
export async function openGolden(root: string, given: RunSpec, named: 'tiny' | 'tiny-chat' = 'tiny'): Promise<TestRun> {
  const model = path.join(root, named);
  await cp(path.join(goldenFolder, named), model, { recursive: true });
  for (const name of ['tokenizer.json', 'tokenizer_config.json'])
    if (named === 'tiny') await writeFile(path.join(model, name), presetFiles('preset:reverse-text-0.2m')[name]!);
  const uri = resolveStoreUri('.', path.join(root, 'store'));
  const spec: RunSpec = { ...given, name: 'golden', model, store: { uri } };
  const base = { name: spec.name, store: uri, lineage: 'main', attempt: 1 };
  const store = storeOf(base);
  return { run: { ...base, spec: await putJson(store, 'specs/test.json', spec) }, spec, store, folder: root };
}

async function playStep(
  { run, spec, store }: TestRun,
  roles: Roles,
  { from, groups, without }: { from: Committed; groups: RecordedStep; without: Without },
): Promise<{ step: GoldenStep; next: Committed }> {
  const { state } = from;
  const step = state.step + 1;
  const first = state.step * groups.length + 1;
  const scoredGroups = groups.map((rollouts, i) => scoredGroup(rollouts, { ordinal: first + i, step, spec, without }));
  const scored = await putRows(store, `rollouts/golden_${step}.jsonl`, scoredGroups);
  const round = { step, first, last: first + groups.length - 1, policyStep: step - 1, leases: scored };
  const { kept } = await roles.filterGroups({ run, round, scored });
  const { packed } = await roles.packBatch({ run, step, trained: [kept], scored: [scored] });
  const { reference, klBeta, overrides, policy } = state;
  const planned = await roles.planStep({ run, step, attempt: 1, from: policy, reference, klBeta, overrides, packed });
  const trained = await act(roles.trainStep, { run, plan: planned.plan });
  assert.ok(trained.policy, trained.reason);
  const renews = spec.kl.refSyncSteps !== null && step % spec.kl.refSyncSteps === 0;
  const next = { ...state, step, policy: trained.policy, reference: renews ? trained.policy : reference };
  const issued = `${first}-${round.last}`;
  const { sha256, isPublished } = await roles.commitStep({
    run,
    parent: from.parent,
    plan: planned.plan,
    optimizer: trained.optimizer,
    pendingAt: trained.pendingAt,
    outcomes: { step, issued, ended: { trained: issued }, pending: '' },
    metrics: {},
    state: next,
  });
  if (!isPublished) await act(roles.publishVersion, { run, policy: trained.policy, optimizer: trained.optimizer });
  const { metrics } = trained;
  const figures = {
    loss: metrics['loss']!,
    gradientNorm: metrics['grad_norm']!,
    learningRate: planned.learningRate,
    entropy: metrics['entropy']!,
    masked: metrics['clip_fraction'] ?? 0,
  };
  return { step: { rows: await plannedRows(run, planned.plan), ...figures }, next: { state: next, parent: sha256 } };
}

export async function plannedRows(run: TestRun['run'], ref: ObjectRef): Promise<GoldenRow[]> {
  const batch = await openBatch(run, await readJson<StepPlan>(run, ref));
  const rows = await batch.read([...batch.rows.keys()]);
  return rows.map(({ tokenIds, lossMask, advantages, rollout }) => ({
    tokens: tokenIds,
    mask: lossMask,
    advantages,
    ...present({ sequence: rollout?.index }),
  }));
}

function scoredGroup(
  rollouts: readonly RecordedRollout[],
  { ordinal, step, spec, without }: { ordinal: number; step: number; spec: RunSpec; without: Without },
): ScoredGroup {
  const exampleId = ordinal;
  const played = rollouts.map((rollout, index): ScoredRollout => {
    const turns = rollout.rewrites && without.rewriting ? rollout.turns.slice(0, 1) : rollout.turns;
    const base = { group: ordinal, index, exampleId, turns: turns.map((turn) => turnOf(turn, step - 1)), metrics: {} };
    return rollout.fails && !without.failures
      ? { ...base, outcome: 'infra_failure', reward: null }
      : { ...base, outcome: 'ok', reward: rollout.reward };
  });
  const environment = spec.environments[0]!.name;
  return { ordinal, environment, exampleId, epoch: 0, policyStep: step - 1, rollouts: played };
}

function turnOf({ prompt, completion, logprobs }: RecordedRollout['turns'][number], policyStep: number): Turn {
  const finishReason = completion.at(-1) === 1 ? 'stop' : 'length';
  return { promptTokenIds: prompt, tokenIds: completion, logprobs, text: '', finishReason, policyStep };
}
