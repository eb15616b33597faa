/** Why a step waits can be read from the labels of its waits (docs/internals/waiting.md): so every wait of a run has one. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { parseSync, type Span, Visitor } from 'oxc-parser';

const root = path.join(import.meta.dirname, '../../workflows');

/** A call of Temporal that a workflow waits for. */
interface Wait extends Span {
  readonly what: string;
}

interface Named extends Span {
  readonly name: string;
}

/** Waits that have no label where they are written, and who labels them. */
const labelledElsewhere: Readonly<Record<string, string>> = {
  'beside/child-work.ts onceItsIdIsFree sleep': 'evaluations wait, and no run',
  'beside/child-work.ts resultOf condition': 'whoever waits for the child: `eval …`, `gepa branch …`',
  'beside/child-work.ts resultOf condition 2': 'likewise',
  'beside/online-evals.ts evaluate condition': 'no step waits: the evaluation is deferred until the last one is made',
  'beside/online-evals.ts resultOf startChild': '`eval …`',
  'beside/prompt-branches.ts branch executeWithOptions': 'no step waits: a search that has not begun',
  'beside/prompt-branches.ts versionOf executeWithOptions': 'no step waits: a search that has not begun',
  'beside/prompt-trials.ts lease executeWithOptions': '`the prompt of E that was found, …`',
  'beside/prompt-trials.ts of executeWithOptions': '`the prompt of E that was found, …`',
  'control/run-control.ts untilResumed condition': '`pausedBecause`',
  'control/run-control.ts untilResumed condition 2': '`pausedBecause`',
  'run-end.ts quiet condition': 'continueRun: `a moment without reports of groups`',
  'run-parts.ts openControl executeWithOptions': 'an update waits, and no step',
  'run-parts.ts openControl executeWithOptions 2': 'no step waits; at the end `answer the requests that have come`',
  'run-parts.ts openControl executeWithOptions 3': 'an update waits, and no step',
  'run-start.ts continueFrom executeWithOptions': 'no query is answered yet',
  'run-start.ts continueFrom readSpec': 'no query is answered yet',
  'run-start.ts openOrContinue executeWithOptions': 'no query is answered yet',
  'step/chunk-gate.ts within condition': 'SamplingWindow.next: `generate step S: …`',
  'step/head.ts commit commitStep': 'trainRun: `commit step S`',
  'step/play-chunk.ts playChunk executeWithOptions': 'SamplingWindow.next: `generate step S: …`',
  'step/pool-turn.ts get condition': '`a trainer of the pool …`',
  'step/pool-turn.ts send tellStanding': '`a trainer of the pool …`; nobody waits for it otherwise',
  'step/ready-groups.ts judge filterGroups': 'RoundsInPlay: `filter groups A-B again`',
  'step/rollout-flow.ts begin startChild': 'SamplingWindow.next: `generate step S: …`',
  'step/rollout-flow.ts lookAfter condition': 'SamplingWindow.next: `generate step S: …`',
  'step/rollout-flow.ts outliveOrphans condition': 'SamplingWindow.next: `generate step S: …`',
  'step/rollout-flow.ts playByOwn condition': 'SamplingWindow.next: `generate step S: …`',
  'step/rollout-flow.ts playByOwn condition 2': 'SamplingWindow.next: `generate step S: …`',
  'step/rollout-flow.ts playedBy condition': 'SamplingWindow.next: `generate step S: …`',
  'step/rounds-in-play.ts lease leaseGroups': 'RoundsInPlay.open: `lease N groups for step S`',
  'step/serving-schedule.ts changing condition': 'ServedWeights: `broadcast …`; OnlineEvals: `eval …`',
  'step/serving-schedule.ts shared condition': 'whoever shares the servers: `the policy servers (…), then …`',
  'step/trainer-lease.ts ask condition': '`a GPU worker …`',
  'step/trainer-lease.ts ask executeWithOptions': 'it is held, and not waited for',
  'step/trainer-lease.ts lookWhomFor condition': '`a GPU worker …`',
  'step/trainer-lease.ts take nextTrainerEpoch': '`a GPU worker …`',
  'step/trainer-lease.ts take sleep': '`a GPU worker …`',
  'step/trainer-lease.ts whomFor describeTrainers': '`a GPU worker …`',
  'step/trainer-lease.ts whomFor describeTurn': '`a trainer of the pool …`',
};

const temporal: ReadonlySet<string> = new Set(['condition', 'sleep', 'startChild']);
const proxies: ReadonlySet<string> = new Set(['eager', 'opening', 'lookup']);

function sourcesOfRun(): string[] {
  const others =
    /^(?:control\/pool-record|control\/search-control|evaluate|optimize-prompt|record-schedule-change|rescore|sweep-sandboxes|search-leases|pool\.ts|sweep\.ts|play-rounds|options|inputs|unknown)/;
  return readdirSync(root, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts') && !others.test(file))
    .toSorted();
}

/** Waits of a file that no call of `waitFor` has in its arguments, directly or by the name of a constant. */
export function unlabelledIn(file: string, source: string): string[] {
  const { program } = parseSync(file, source);
  const [waits, labels, constants, functions]: [Wait[], Span[], Named[], Named[]] = [[], [], [], []];
  const used: Named[] = [];
  new Visitor({
    CallExpression({ callee, arguments: given, start, end }) {
      const called =
        callee.type === 'MemberExpression' && callee.property.type === 'Identifier' ? callee.property.name : '';
      const on = callee.type === 'MemberExpression' && callee.object.type === 'Identifier' ? callee.object.name : '';
      if (called === 'waitFor') labels.push(...given.map((one) => ({ start: one.start, end: one.end })));
      else if (called === 'executeWithOptions' || proxies.has(on)) waits.push({ what: called, start, end });
      else if (callee.type === 'Identifier' && temporal.has(callee.name)) waits.push({ what: callee.name, start, end });
    },
    VariableDeclarator({ id, init }) {
      if (id.type === 'Identifier' && init) constants.push({ name: id.name, start: init.start, end: init.end });
    },
    Identifier({ name, start, end }) {
      used.push({ name, start, end });
    },
    MethodDefinition({ key, start, end }) {
      if (key.type === 'Identifier' || key.type === 'PrivateIdentifier') functions.push({ name: key.name, start, end });
    },
    FunctionDeclaration({ id, start, end }) {
      if (id) functions.push({ name: id.name, start, end });
    },
  }).visit(program);
  const within = (one: Span) => (other: Span) => other.start <= one.start && one.end <= other.end;
  const labelled = new Set(used.filter((one) => labels.some(within(one))).map(({ name }) => name));
  const seen = new Map<string, number>();
  return waits
    .filter((one) => !labels.some(within(one)))
    .filter((one) => !constants.some((constant) => labelled.has(constant.name) && within(one)(constant)))
    .map((one) => {
      const [own] = functions.filter(within(one)).toSorted((a, b) => b.start - a.start);
      const name = `${file} ${own?.name ?? ''} ${one.what}`;
      const times = (seen.get(name) ?? 0) + 1;
      seen.set(name, times);
      return times === 1 ? name : `${name} ${times}`;
    });
}

test('every wait of a run is labelled', () => {
  const found = sourcesOfRun().flatMap((file) => unlabelledIn(file, readFileSync(path.join(root, file), 'utf8')));
  assert.deepEqual(found.toSorted(), Object.keys(labelledElsewhere).toSorted());
});

test('a wait without a label is found, whether it is awaited at once or named first', () => {
  const source = `
    async function a() { await eager.readSpec({}); }
    async function b() { const going = condition(() => true); await going; }
    async function c() { await control.waitFor('x', eager.readSpec({})); }
    async function d() { const reading = eager.readSpec({}); await control.waitFor('x', reading); }
  `;
  assert.deepEqual(unlabelledIn('a.ts', source), ['a.ts a readSpec', 'a.ts b condition']);
});
