/** Fingerprints of stored forms, from the types that write and read them. A fingerprint changes with each field. */
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseSync, Visitor } from 'oxc-parser';
import { formsOfColumns, storedForms } from '../../runs/forms/stored-forms.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));

/** Declaring file and name of each form's type. */
const typeOfForm: Readonly<Record<keyof typeof storedForms | keyof typeof formsOfColumns, readonly [string, string]>> =
  {
    runRecord: ['runs/forms/record-settings.ts', 'RunRecord'],
    // New settings have defaults, so older specs still parse: recorded runs test that.
    spec: ['config/run-spec.ts', 'RunSpec'],
    specSource: ['runs/forms/spec-source.ts', 'SpecSource'],
    lineage: ['runs/run-access.ts', 'LineageRecord'],
    trainerClaim: ['runs/forms/record-shapes.ts', 'TrainerClaim'],
    claim: ['runs/forms/record-shapes.ts', 'WorkflowClaim'],
    commit: ['core/rl/run-state.ts', 'StepCommit'],
    manifest: ['runs/versions/checkpoints.ts', 'CheckpointManifest'],
    optimizerFiles: ['runs/versions/optimizer-state.ts', 'OptimizerFiles'],
    warmUp: ['runs/versions/warm-up-state.ts', 'WarmUpState'],
    leases: ['core/rl/run-state.ts', 'LeasedGroups'],
    playedPart: ['core/rl/rollout/played-part.ts', 'PlayedPart'],
    leftChunk: ['play/chunk-play.ts', 'GeneratedChunk'],
    scoredGroup: ['core/rl/rollout/rollout.ts', 'ScoredGroup'],
    turn: ['runs/rollouts/turn-rows.ts', 'StoredTurn'],
    unfinished: ['core/rl/rollout/rollout.ts', 'UnfinishedRollout'],
    evaluatedExample: ['runs/evaluations/evaluation-store.ts', 'ScoredExample'],
    rollout: ['core/rl/rollout/rollout.ts', 'Rollout'],
    notes: ['core/rl/rollout/notes.ts', 'NotesPart'],
    chunkInPlay: ['core/rl/rollout/in-play.ts', 'ChunkInPlay'],
    pools: ['core/rl/sampling/pools.ts', 'Pools'],
    plan: ['core/rl/run-state.ts', 'StepPlan'],
    taught: ['core/rl/run-state.ts', 'TaughtRows'],
    packed: ['core/rl/run-state.ts', 'PackedBatch'],
    batchRow: ['runs/rollouts/older-batches.ts', 'OlderRow'],
    quarantinedServers: ['activities/broadcast-weights.ts', 'QuarantinedServers'],
    canary: ['core/rl/learning/canary.ts', 'Canary'],
    servedVersion: ['core/rl/run-state.ts', 'PolicyVersion'],
    referenceSums: ['learn/preference-rows.ts', 'ReferenceSums'],
    sentNotice: ['runs/metrics/notices.ts', 'SentNotice'],
    webhook: ['runs/metrics/notices.ts', 'WebhookState'],
    notice: ['core/rl/notices.ts', 'Notice'],
    keptRun: ['runs/lineages/outlived.ts', 'KeptRun'],
    change: ['core/rl/changes.ts', 'RunChange'],
    sinks: ['core/rl/metric-rows.ts', 'SinkStates'],
    evaluation: ['core/eval/evaluation.ts', 'StoredEvaluation'],
    evaluationSummary: ['core/eval/evaluation.ts', 'EvaluationResult'],
    rescore: ['core/eval/rescore.ts', 'StoredRescore'],
    rescoredChunk: ['core/eval/rescore.ts', 'StoredRescoredChunk'],
    rescoredGroup: ['core/eval/rescore.ts', 'RescoredGroup'],
    journaledGroup: ['core/eval/rescore.ts', 'JournaledGroup'],
    rescoreSummary: ['core/eval/rescore.ts', 'RescoreResult'],
    checkpointSubject: ['runs/evaluations/checkpoint-evaluations.ts', 'CheckpointSubject'],
    search: ['core/gepa/prompt-search.ts', 'StoredPromptSearch'],
    searchSummary: ['core/gepa/prompt-search.ts', 'PromptSearchResult'],
    answer: ['runs/searches/search-store.ts', 'AnswerRow'],
    promptTrial: ['core/gepa/prompt-search.ts', 'PromptTrial'],
    budget: ['core/rl/budget-ledger.ts', 'BudgetState'],
    sandboxProject: ['runs/sandboxes/lease-records.ts', 'SandboxProject'],
    sandboxPool: ['runs/sandboxes/lease-records.ts', 'SandboxPool'],
    sandboxLease: ['runs/sandboxes/lease-records.ts', 'SandboxLease'],
    sandboxCreating: ['runs/sandboxes/lease-records.ts', 'SandboxCreating'],
    sandboxLive: ['runs/sandboxes/lease-records.ts', 'SandboxLive'],
    endedSandbox: ['runs/sandboxes/lease-records.ts', 'EndedSandbox'],
    sandboxPlace: ['runs/sandboxes/lease-records.ts', 'SandboxPlace'],
    batchColumns: ['runs/rollouts/batch-parts.ts', 'RowHead'],
    taughtColumns: ['runs/rollouts/batch-parts.ts', 'TaughtHead'],
    scoreColumns: ['runs/rollouts/batch-parts.ts', 'ScoresHead'],
  };

/** Version of each form, and names of the declarations it is made of. */
export type Fingerprints = Readonly<
  Record<string, { readonly version: number; readonly types: Readonly<Record<string, string>> }>
>;

export function fingerprintsNow(): Fingerprints {
  const versions = { ...storedForms, ...formsOfColumns };
  return Object.fromEntries(
    Object.entries(versions).map(([id, { version }]) => {
      const [file, name] = typeOfForm[id as keyof typeof typeOfForm];
      const types = new Map<string, string>();
      collect(file, name, types);
      return [id, { version, types: Object.fromEntries([...types].toSorted(([a], [b]) => (a < b ? -1 : 1))) }];
    }),
  );
}

interface Declared {
  readonly text: string;
  /** Names that the declaration refers to. */
  readonly names: readonly string[];
}

interface ParsedFile {
  readonly declared: ReadonlyMap<string, Declared>;
  /** Source file and original name of each imported name. */
  readonly imported: ReadonlyMap<string, readonly [string, string]>;
}

/** Allowed values of settings are not stored forms: which there are, older ones among them, recorded runs test. */
const ofSettings = /^(?:config\/|core\/settings\/(?:code|learning|rollouts|run)\.ts$)/;

/** Adds a declaration and those it refers to. */
function collect(file: string, name: string, types: Map<string, string>): void {
  const { declared, imported } = parsed(file);
  const found = declared.get(name);
  if (!found) {
    const from = imported.get(name);
    if (from && !ofSettings.test(from[0])) collect(...from, types);
    return;
  }
  const key = `${file} ${name}`;
  if (types.has(key)) return;
  types.set(key, file.startsWith('config/') ? '' : found.text);
  if (!file.startsWith('config/')) for (const other of found.names) collect(file, other, types);
}

const files = new Map<string, ParsedFile>();

function parsed(file: string): ParsedFile {
  const known = files.get(file) ?? parse(file);
  files.set(file, known);
  return known;
}

function parse(file: string): ParsedFile {
  const source = readFileSync(path.join(root, file), 'utf8');
  const { program, comments } = parseSync(file, source);
  const plain = withoutComments(source, comments);
  const declared = new Map<string, Declared>();
  const imported = new Map<string, readonly [string, string]>();
  const add = (name: string, { start, end }: { readonly start: number; readonly end: number }): void => {
    const text = plain
      .slice(start, end)
      .replaceAll(/\s+/g, ' ')
      .replaceAll(/,(?= [\])}])/g, '')
      .trim();
    declared.set(name, { text, names: [...new Set(text.match(/\b[A-Za-z_]\w*\b/g))].filter((word) => word !== name) });
  };
  new Visitor({
    TSInterfaceDeclaration: (node) => add(node.id.name, node),
    TSTypeAliasDeclaration: (node) => add(node.id.name, node),
    VariableDeclarator(node) {
      // Lists that a type is derived from, as in `(typeof outcomes)[number]`.
      if (node.id.type === 'Identifier' && node.init && /\bas const\s*$/.test(plain.slice(node.start, node.end)))
        add(node.id.name, node);
    },
    ImportDeclaration(node) {
      const from = node.source.value;
      if (!from.startsWith('.')) return;
      const target = path.posix.join(path.posix.dirname(file), from);
      for (const one of node.specifiers)
        if (one.type === 'ImportSpecifier')
          imported.set(one.local.name, [
            target,
            one.imported.type === 'Identifier' ? one.imported.name : one.local.name,
          ]);
    },
  }).visit(program);
  return { declared, imported };
}

function withoutComments(
  source: string,
  comments: readonly { readonly start: number; readonly end: number }[],
): string {
  let plain = source;
  for (const { start, end } of comments) plain = plain.slice(0, start) + ' '.repeat(end - start) + plain.slice(end);
  return plain;
}

const recordedFile = path.join(root, 'test/data/stored-forms/types.json');

/** Fingerprints as recorded when each form got its present version. */
export function recordedFingerprints(): Fingerprints {
  const { forms, types } = JSON.parse(readFileSync(recordedFile, 'utf8')) as Recorded;
  return Object.fromEntries(
    Object.entries(forms).map(([id, { version, types: names }]) => [
      id,
      { version, types: Object.fromEntries(names.map((name) => [name, types[name] ?? ''])) },
    ]),
  );
}

/** Declarations are stored once, because many forms share them. */
interface Recorded {
  readonly forms: Readonly<Record<string, { readonly version: number; readonly types: readonly string[] }>>;
  readonly types: Readonly<Record<string, string>>;
}

export function writeFingerprints(now: Fingerprints): void {
  const forms = Object.entries(now).map(([id, { version, types }]) => [id, { version, types: Object.keys(types) }]);
  const types = Object.values(now).flatMap((form) => Object.entries(form.types));
  const recorded = {
    forms: Object.fromEntries(forms),
    types: Object.fromEntries(types.toSorted(([a], [b]) => (a < b ? -1 : 1))),
  };
  writeFileSync(recordedFile, `${JSON.stringify(recorded, null, 2)}\n`);
}

/** Returns what must be done before the present types may be recorded, one line for each changed form. */
export function unversionedChanges(recorded: Fingerprints, now: Fingerprints): string[] {
  return Object.entries(now).flatMap(([id, form]) => {
    const before = recorded[id];
    if (!before || form.version > before.version) return [];
    if (form.version < before.version)
      return [
        `${id}: version ${before.version} was recorded, and the present one is ${form.version}. Versions only grow.`,
      ];
    const names = [...new Set([...Object.keys(before.types), ...Object.keys(form.types)])];
    const changed = names.filter((name) => before.types[name] !== form.types[name]);
    if (changed.length === 0) return [];
    const was = changed.map(
      (name) => `  ${name}\n    was ${before.types[name] ?? 'nothing'}\n    is  ${form.types[name] ?? 'nothing'}`,
    );
    return [
      `${id} is stored in another way than its version ${before.version} was:\n${was.join('\n')}\n` +
        `Add an upgrade from version ${before.version} to storedForms.${id} in runs/forms/stored-forms.ts, keep a sample of that version in test/data/older-runs or test/data/stored-forms, and type: npm run record:forms`,
    ];
  });
}
