/** Runs another system's run file for one step. For tests, and for `bench fidelity --play`. */
import assert from 'node:assert/strict';
import { mkdir } from 'node:fs/promises';
import path from 'node:path';
import { createEnvironments, openEnvironment } from '../../../backends/environments/index.ts';
import { openInference } from '../../../backends/inference/index.ts';
import { resolveStoreUri } from '../../../store/index.ts';
import { putJson } from '../../../store/objects.ts';
import { OnnxTrainer } from '../../../backends/trainer/onnx.ts';
import { createAskTeacher } from '../../../activities/ask-teacher.ts';
import { InferenceSpec, type RunSpec } from '../../../config/run-spec.ts';
import { createPreset, loadTokenizer, saveModelFolder, startPolicyServer } from '../../../engine/index.ts';
import { storeOf } from '../../../runs/run-access.ts';
import { act, commitFirst, type Committed, openRoles, type Roles, type TestRun } from '../../activities/runs.ts';

/** A tiny model of random weights, whose tokenizer is that of `openRoles`. */
const model = 'preset:reverse-text-0.2m';
const most = { groups: 2, rollouts: 4, tokens: 24 } as const;
/** Most sampling rounds until a group has a signal. */
const roundsMax = 8;

export interface Stage {
  /** One step of the run: sampled, scored, packed, trained and committed. Throws where it does not come to its end. */
  play(spec: RunSpec): Promise<PlayedStep>;
  close(): Promise<void>;
}

export interface PlayedStep {
  readonly rows: number;
  readonly metrics: Readonly<Record<string, number>>;
}

/** Stand-ins for all files: one policy server, and a built-in environment in place of each. */
export async function openStage(folder: string, standIn: string): Promise<Stage> {
  await mkdir(folder, { recursive: true });
  const server = await startPolicyServer({ key: null, host: '127.0.0.1', port: 0, allowRoots: [folder], threads: 1 });
  const teacher = path.join(folder, 'teacher');
  await saveModelFolder(createPreset(model, { seed: 9 }), teacher);
  const environment = await openEnvironment({ id: standIn, args: {} });
  let played = 0;
  return {
    async play(given) {
      const run = await openRun(path.join(folder, `${++played}`), reduced(given, { teacher, url: server.url }));
      const inference = openInference(run.spec.inference, '');
      const environments = createEnvironments(() => Promise.resolve(environment));
      const roles = openRoles(inference, { environments, engine: () => new OnnxTrainer({ threads: 1 }) });
      try {
        return await playStep(run, roles, {
          from: await commitFirst(run, roles),
          length: environment.dataset.length,
          ask: createAskTeacher({ inference: () => inference, tokenizer: openTeaching }),
        });
      } finally {
        await roles.policyTrainer.close();
        inference.close?.();
      }
    },
    close: () => server.close(),
  };
}

/** That of the model, whose own template says nothing of system messages. */
const openTeaching = (folder: string) =>
  loadTokenizer(folder, { chatTemplate: '{%- for message in messages -%}{{- message.content -}}{%- endfor -%}' });

/** The file's run, reduced in size and to what is here: its model, servers, teacher and evaluations are replaced. */
function reduced(given: RunSpec, { teacher, url }: { readonly teacher: string; readonly url: string }): RunSpec {
  const { gepa: _, ...spec } = given;
  const sampling = (own: RunSpec['sampling']): RunSpec['sampling'] => {
    const { contextTokens: _, ...others } = own;
    return { ...others, maxTokens: Math.min(own.maxTokens, most.tokens), minTokens: Math.min(own.minTokens, 1) };
  };
  const size = Math.min(spec.rolloutsPerExample, most.rollouts);
  return {
    ...spec,
    name: 'played',
    model,
    chatTemplate: null,
    rolloutsPerExample: size,
    minGroupSize: spec.minGroupSize === null ? null : Math.min(spec.minGroupSize, size),
    batchSize: most.groups * size,
    tokenBatchSize: null,
    sampling: sampling(spec.sampling),
    environments: spec.environments.map((entry) =>
      entry.sampling === undefined ? entry : { ...entry, sampling: sampling(entry.sampling) },
    ),
    eval: null,
    sft: null,
    inference: InferenceSpec.parse({ kind: 'embedded', url }),
    teacher: spec.teacher && {
      ...spec.teacher,
      folder: spec.teacher.demonstration ? null : teacher,
      ...(spec.teacher.demonstration && {
        demonstration: { ...spec.teacher.demonstration, template: '{demonstration}' },
      }),
      model: null,
      urls: [],
      endpoints: null,
      apiKeyVar: null,
      sampling: sampling(spec.teacher.sampling),
    },
  };
}

async function openRun(folder: string, given: RunSpec): Promise<TestRun> {
  const uri = resolveStoreUri('.', folder);
  const spec: RunSpec = { ...given, store: { uri } };
  const base = { name: spec.name, store: uri, lineage: 'main', attempt: 1 };
  const store = storeOf(base);
  return { run: { ...base, spec: await putJson(store, 'specs/test.json', spec) }, spec, store, folder };
}

async function playStep(
  { run, spec }: TestRun,
  roles: Roles,
  { from, length, ask }: { from: Committed; length: number; ask: ReturnType<typeof createAskTeacher> },
): Promise<PlayedStep> {
  const { state } = from;
  const datasets = spec.environments.map(({ name, weight }) => ({ name, weight, datasetLength: length }));
  const { kept, packed, curriculum } = await collected(run, roles, { state, datasets });
  const isScored = spec.teacher?.role === 'scores';
  const { reference, klBeta, overrides, policy } = state;
  const taught = isScored ? await act(ask, { run, step: 1, packed: packed.packed, trained: kept, policy }) : undefined;
  const planned = await roles.planStep({
    run,
    step: 1,
    attempt: 1,
    from: policy,
    reference,
    klBeta,
    overrides,
    packed: packed.packed,
    ...(taught ? { taught } : {}),
  });
  const trained = await act(roles.trainStep, { run, plan: planned.plan });
  assert.ok(trained.policy, `its batch was refused: ${trained.reason}`);
  const ordinals = kept.map((one) => one.ordinals).join(',');
  await roles.commitStep({
    run,
    parent: from.parent,
    plan: planned.plan,
    optimizer: trained.optimizer,
    pendingAt: trained.pendingAt,
    outcomes: { step: 1, issued: ordinals, ended: { trained: ordinals }, pending: '' },
    metrics: {},
    state: { ...state, step: 1, policy: trained.policy, curriculum },
  });
  return { rows: packed.rows, metrics: trained.metrics };
}

/** Rounds until one has groups that teach something, as a run collects a batch anew that does not. */
async function collected(
  run: TestRun['run'],
  roles: Roles,
  { state, datasets }: { state: Committed['state']; datasets: Parameters<Roles['leaseGroups']>[0]['datasets'] },
) {
  const why = new Set<string>();
  let { curriculum } = state;
  for (let round = 1; round <= roundsMax; round++) {
    const { policy } = state;
    const leased = await roles.leaseGroups({ run, step: 1, count: most.groups, curriculum, datasets, policy });
    curriculum = leased.curriculum;
    const kept = [];
    const scored = [];
    for (const chunk of leased.chunks) {
      const { parts } = await act(roles.playGroups, { run, round: leased.round, chunk });
      for (const { filtered, scored: groups } of parts) {
        scored.push(groups);
        if (filtered.kept.ordinals !== '') kept.push(filtered.kept);
        for (const ended of Object.keys(filtered.ended)) why.add(ended);
        for (const cause of Object.values(filtered.failures?.causes ?? {})) why.add(cause.first);
      }
    }
    if (kept.length === 0) continue;
    const packed = await roles.packBatch({ run, step: 1, trained: kept, scored });
    if (packed.hasSignal) return { kept, packed, curriculum };
    why.add('no token has an advantage');
  }
  return assert.fail(`of ${roundsMax * most.groups} groups none teaches anything: ${[...why].join('; ')}`);
}
