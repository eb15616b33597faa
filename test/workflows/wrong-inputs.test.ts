/** Inputs and messages that any client of Temporal may send: a wrong input fails at once, a wrong message does no harm. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { type Client, WorkflowFailedError, type WorkflowHandle, WorkflowUpdateFailedError } from '@temporalio/client';
import { ApplicationFailure, RawValue } from '@temporalio/common';
import proto from '@temporalio/proto';
import { memoKeys, taskQueues } from '../../core/names.ts';
import { received } from '../../core/shape.ts';
import { evaluationOf, searchOf } from './fake-evaluation.ts';
import { Gate, holdingStep } from './fake-run.ts';
import { soon } from './look.ts';
import { begin, closeServer, freshName, openServer } from './server.ts';

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
const raw = (encoding: string | null, data: string): RawValue =>
  RawValue.fromPayload({ metadata: encoding === null ? {} : { encoding: bytes(encoding) }, data: bytes(data) });

/** Inputs that any client may send, to any workflow. */
const noInputs: readonly (readonly [what: string, args: readonly unknown[], said: RegExp])[] = [
  ['nothing', [], /received nothing/],
  ['null', [null], /received null/],
  ["Python's None", [undefined], /received nothing/],
  ['a number', [5], /received 5 \(a number\)/],
  ['true', [true], /received true/],
  ['a list', [['words.toml']], /received a list of 1/],
  ['a list of two', [['words.toml', {}]], /received a list of 2/],
  ['two arguments', ['words.toml', { max_steps: 3 }], /expected one input, received 2/],
  ['bytes', [raw('binary/plain', '"words.toml"')], /received 12 bytes that are not JSON/],
  ['a protobuf message', [raw('binary/protobuf', 'xyz')], /not JSON \(encoding binary\/protobuf/],
  ['text that is no JSON', [raw('json/plain', '{config: words.toml')], /not JSON \(encoding json\/plain/],
  ['an empty payload', [raw('json/plain', '')], /not JSON \(encoding json\/plain/],
  ['no encoding', [raw(null, '"words.toml"')], /not JSON \(encoding none/],
];

const file = (type: string): Cases[number][1] =>
  [
    ['an empty object', {}, /config: expected the path of .*, is missing/],
    ['a config that is a number', { config: 5 }, /config: expected the path of .*, received 5 \(a number\)/],
    ['a config that is null', { config: null }, /config: expected the path of .*, received null/],
    [
      'a config that is a table',
      { config: { model: 'x' } },
      /config: expected the path of .*, received an object with model/,
    ],
    ['a misspelt config', { cofnig: 'words.toml' }, /cofnig: there is no such field. Did you mean config\?/],
    ['an empty path', '', /config: expected the path of .*, received ""/],
    ['a path with a zero byte', 'words\0.toml', /config: expected the path of/],
    ['a path of a megabyte', 'x'.repeat(1_000_000), /config: expected the path of .*, received "x{60}…"/],
    [`another field`, { config: 'words.toml', Config: 'x' }, /Config: there is no such field. Did you mean config\?/],
  ].map((one) => [`${type}: ${one[0] as string}`, one[1], one[2] as RegExp] as const);

type Cases = readonly (readonly [
  type: string,
  inputs: readonly (readonly [what: string, input: unknown, said: RegExp])[],
])[];

/** JSON nested so deep that a recursive parser fails. */
const deep = `${'{"deep":'.repeat(50_000)}1${'}'.repeat(50_000)}`;

const { environment: _, ...withoutEnvironment } = evaluationOf('place', 'words');
const wrongInputs: Cases = [
  [
    'trainRun',
    [
      ...file('trainRun'),
      ['overides', { config: 'words.toml', overides: { max_steps: '1' } }, /overides: .*Did you mean overrides\?/],
      [
        'overrides in a list',
        { config: 'words.toml', overrides: ['max_steps=1'] },
        /overrides: expected settings .* received a list of 1/,
      ],
      [
        'a setting that is null',
        { config: 'words.toml', overrides: { max_steps: null } },
        /overrides\.max_steps: expected a value as TOML has it.* received null/,
      ],
      [
        'a seed that loses digits',
        { config: 'words.toml', overrides: { seed: 2 ** 60 } },
        /overrides\.seed: a number this large loses digits/,
      ],
      [
        'settings without end',
        raw('json/plain', `{"config": "words.toml", "overrides": {"env": ${deep}}}`),
        /expected at most 20 tables/,
      ],
      ['a bad name', { config: 'words.toml', run: 'My Run' }, /run: expected a run's name .* received "My Run"/],
      ['a name that is a path', { config: 'words.toml', run: '../x' }, /run: expected a run's name/],
      ['a step before 0', { config: 'words.toml', rewind: -1 }, /rewind: expected a whole number from 0, received -1/],
      [
        'a step as a text',
        { config: 'words.toml', rewind: '3' },
        /rewind: expected a whole number from 0, received "3"/,
      ],
      ['over as a text', { config: 'words.toml', over: 'mine.toml' }, /over: expected a list of files/],
      [
        'over as a list of texts',
        { config: 'words.toml', over: ['mine.toml'] },
        /over\[0\]: expected an object with file/,
      ],
      ['a dialect that is a number', { config: 'words.toml', dialect: 4 }, /dialect: expected a text/],
      ['several things at once', { confg: 'words.toml', run: 5 }, /confg: .*\n- config: .*\n- run: /],
      ['what one execution hands to the next', { continued: {} }, /cannot begin another/],
      ['the same with null', { continued: null }, /cannot begin another/],
      ['a take-over that is none', { config: 'words.toml', takesOver: 5 }, /takesOver: expected an object with/],
      [
        'a take-over without its run',
        { config: 'words.toml', takesOver: { handle: {}, asked: null, request: 'x' } },
        /takesOver\.handle\.name: expected a text/,
      ],
      [
        'sent files that are none',
        { config: 'words.toml', sent: { texts: [], beside: {} } },
        /sent\.texts: expected texts by name/,
      ],
    ],
  ],
  [
    'evaluate',
    [
      ...file('evaluate'),
      ['over as a text', { config: 'evals.toml', over: 'num_examples=3' }, /over: expected settings/],
      [
        'another word',
        { config: 'evals.toml', goOn: 'always' },
        /goOn: expected "interrupted" or "unfinished" or "never"/,
      ],
      [
        'an evaluation without its environment',
        withoutEnvironment,
        /environment: expected an object with id, name, args, is missing/,
      ],
      [
        'an environment that is null',
        { ...evaluationOf('place', 'words'), environment: null },
        /environment: expected an object/,
      ],
      [
        'a model of no kind',
        { ...evaluationOf('place', 'words'), model: { model: 'x' } },
        /model\.kind: expected "endpoint" or "version"/,
      ],
      [
        'examples as a text',
        { ...evaluationOf('place', 'words'), numExamples: 'all' },
        /numExamples: expected a whole number from −1/,
      ],
      [
        'a misspelt field',
        { ...evaluationOf('place', 'words'), skipExample: 3 },
        /skipExample: .*Did you mean skipExamples\?/,
      ],
      [
        'a list with something else in it',
        { inputs: [evaluationOf('place', 'words'), 5], title: 'two' },
        /inputs\[1\]: expected an object/,
      ],
      ['a list that is none', { inputs: 5, title: 'two' }, /inputs: expected a list of evaluations, received 5/],
    ],
  ],
  [
    'evaluateNewest',
    [
      ['an empty object', {}, /config: .*is missing/],
      ['neither', { config: null, run: null, onRegression: 'flag' }, /config and run are both null/],
      [
        'a run by its name alone',
        { config: null, run: 'words', onRegression: 'flag' },
        /run: expected an object with name, store, received "words"/,
      ],
      [
        'another action',
        { config: 'evals.toml', run: null, onRegression: 'panic' },
        /onRegression: expected "flag" or "pause" or "stop"/,
      ],
    ],
  ],
  [
    'optimizePrompt',
    [
      ...file('optimizePrompt'),
      ['overides', { config: 'gepa.toml', overides: {} }, /Did you mean overrides\?/],
      ['yes as a text', { config: 'gepa.toml', yes: 'true' }, /yes: expected true or false/],
      ['a search without its servers', { ...searchOf('place'), reflection: null }, /reflection: expected an object/],
      [
        'environments that are none',
        { ...searchOf('place'), environments: 5 },
        /environments: expected a list of environments/,
      ],
      ['what one execution hands to the next', { handle: {}, state: {} }, /cannot begin another/],
    ],
  ],
  [
    'sweep',
    [
      ['an empty object', {}, /name: .*is missing/],
      ['what one execution hands to the next', { continued: {} }, /cannot begin another/],
      ['no runs', { ...sweepOf('words'), runs: [] }, /runs: expected at least one/],
      ['a row that there is not', { ...sweepOf('words'), rows: [] }, /runs: expected rows/],
      ['nothing at once', { ...sweepOf('words'), atOnce: 0 }, /atOnce.*a whole number from 1/],
    ],
  ],
  [
    'playRounds',
    [
      ['an empty object', {}, /run: expected an object with name, store, lineage, spec, attempt, is missing/],
      ['a run that is null', { run: null, spec: { heartbeatTimeoutS: 20 }, tells: 'words' }, /run: expected an object/],
    ],
  ],
  [
    'trianRun',
    [['a type that there is not', 'words.toml', /There is no workflow type "trianRun" here.*Did you mean trainRun\?/]],
  ],
];

function sweepOf(name: string) {
  const runs = [{ name: `${name}-01`, row: 0, seed: null, overrides: {} }];
  const metric = { name: 'train/reward', goal: 'max', lastSteps: 1 };
  return {
    name,
    store: 'file:outputs',
    config: 'words.toml',
    rows: [{}],
    runs,
    metric,
    maxSteps: 4,
    halving: null,
    atOnce: 1,
  };
}

let client: Client;
before(async () => {
  ({ client } = await openServer());
});
after(closeServer);

async function failureOf(type: string, args: readonly unknown[]): Promise<ApplicationFailure> {
  const handle = await client.workflow.start(type, {
    workflowId: freshName(),
    taskQueue: taskQueues.orchestrator,
    args: [...args],
  });
  const ended: unknown = await soon('the end', handle.result()).then(
    (result) => result,
    (error: unknown) => error,
  );
  assert.ok(ended instanceof WorkflowFailedError, `it failed: ${String(ended)}`);
  const { cause } = ended;
  assert.ok(cause instanceof ApplicationFailure, `with a failure of ours: ${String(cause)}`);
  assert.deepEqual([cause.type, cause.nonRetryable], ['InputInvalid', true]);
  assert.ok(cause.message.length < 4_000, `a message of ${cause.message.length} characters`);
  assert.equal(await taskFailures(handle), 0, 'no workflow task was tried again');
  return cause;
}

const { WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND } = proto.temporal.api.enums.v1.WorkflowTaskFailedCause;

/** Failures of the code: the server fails a task by itself where a message came while the workflow ended. */
async function taskFailures(handle: WorkflowHandle): Promise<number> {
  const { events = [] } = await handle.fetchHistory();
  const failures = events?.flatMap(({ workflowTaskFailedEventAttributes: failed }) => (failed ? [failed.cause] : []));
  return failures?.filter((cause) => cause !== WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND).length ?? 0;
}

describe(
  'a workflow that is started with a wrong input fails at once, and says what is wrong',
  { concurrency: 8 },
  () => {
    for (const [type, inputs] of wrongInputs) {
      const known = type !== 'trianRun';
      const all = [...(known ? noInputs : []), ...inputs.map(([what, input, said]) => [what, [input], said] as const)];
      for (const [what, args, said] of all) {
        test(`${type} with ${what}`, async () => {
          const { message } = await failureOf(type, args);
          assert.match(message, said);
          if (type !== 'playRounds')
            assert.match(message, /npx ratchet-rl temporal workflow start --type \w+ --task-queue ratchet/);
        });
      }
    }
  },
);

describe('a valid input', { concurrency: 4 }, () => {
  test('numbers, lists and tables of settings reach the run as if they were typed', async () => {
    const overrides = {
      max_steps: 1,
      learning_rate: 1e-7,
      'eval.enabled': false,
      name: 'words',
      gpu_ids: [0, 1],
      env: [{ id: 'reverse-text', weight: 2 }],
      sampling: { temperature: 0.7 },
    };
    const run = await begin({ settings: { maxSteps: 1 }, input: { overrides, run: null, over: null } });
    await run.result();
    const [opened] = run.inputs('openRun') as unknown as [{ readonly overrides: unknown }];
    assert.deepEqual(opened, {
      config: `${run.name}.toml`,
      overrides: {
        max_steps: '1',
        learning_rate: '1e-7',
        'eval.enabled': 'false',
        name: 'words',
        gpu_ids: '[0, 1]',
        env: '[{ "id" = "reverse-text", "weight" = 2 }]',
        sampling: '{"temperature":0.7}',
      },
    });
  });

  test('a run that an older version started with an unknown field is still taken over', async () => {
    const run = await begin({ settings: { maxSteps: 1 } });
    await run.result();
    const { fake } = run;
    const takesOver = { handle: fake.handle, asked: null, request: 'x/y' };
    const again = await begin({ fake, input: { overides: { max_steps: '1' }, takesOver } });
    assert.equal((await again.result()).step, 1);
  });
});

test('an evaluation that an upgrade restarted may come from a version with more fields', async () => {
  const input = { ...evaluationOf('place', 'words'), ofAnotherVersion: true };
  const run = await begin({ type: 'evaluate', args: [input], memo: { [memoKeys.takenOverFrom]: 'x' } });
  await soon('the end', run.handle.result());
});

const wrongSignals: readonly (readonly [name: string, args: readonly unknown[]])[] = [
  ['trainer-leased', []],
  ['trainer-leased', [null]],
  ['trainer-leased', [{ epoch: 'one', holder: 5 }]],
  ['store-missed', []],
  ['store-missed', [null]],
  ['store-missed', [{ worker: 'GPU worker 7 on gpu-b' }]],
  ['groups-ended', [null]],
  ['groups-ended', [{ lineage: 'main', parts: [{}] }]],
  ['groups-ended', [{ lineage: 'main', parts: [{ ordinals: '0-999999999999' }] }]],
  ['groups-ended', [raw('binary/protobuf', 'xyz')]],
  ['rounds-played', [5]],
  ['rounds-played', [{ lineage: 'main', played: null }]],
  ['rounds-played', [{ lineage: 'main', played: { failed: 'yes' } }]],
  ['rollouts-wait', []],
  ['evaluation-ended', [undefined]],
  ['evaluation-ended', [{ workflowId: 'x', result: null }]],
  ['regression-found', [{ environment: 'words' }]],
  ['prompt-branch-ended', ['words']],
];

const wrongUpdates: readonly (readonly [name: string, args: readonly unknown[], said: RegExp])[] = [
  [
    'pause',
    [5],
    /^pause: reason: expected a reason in one line .* received 5 \(a number\)\. For example: npx ratchet-rl temporal workflow update execute .* --name pause --input '"to look at it"'/,
  ],
  ['pause', [{ reason: 'x' }], /received an object with reason/],
  ['pause', ['x'.repeat(100_000)], /of at most 2000 characters, received "x{60}…"/],
  ['pause', ['to look', 'at it'], /expected one input, received "at it" beside it/],
  ['pause', [raw('binary/protobuf', 'xyz')], /not JSON/],
  ['set', [], /settings: expected settings with their new values.* is missing/],
  ['set', [null], /received null/],
  ['set', [[1]], /received a list of 1/],
  ['set', ['learning_rate=1'], /received "learning_rate=1"/],
  ['set', [{}], /Nothing to set/],
  ['set', [{ learning_rat: 0.1 }], /Did you mean learning_rate\?/],
  [
    'set',
    [{ learning_rate: { to: 0.1 } }],
    /learning_rate: expected a number above 0 and below 1; got an object with to/,
  ],
  [
    'set',
    [raw('json/plain', `{"learning_rate": ${deep}}`)],
    /learning_rate: expected a number above 0 and below 1; got an object with deep/,
  ],
  ['rewind', [], /step: expected a committed step, is missing/],
  ['rewind', ['3'], /received "3"/],
  ['rewind', [null], /received null/],
  ['rewind', [7], /expected a committed step up to 1, got 7/],
  ['stop', [5], /expected no input, received 5 \(a number\)/],
  ['resume', [{}], /expected no input, received an empty object/],
  ['gepa-branch', [5], /environment: expected the name of an environment, received 5/],
  ['adopt-prompt', [['words']], /received a list of 1/],
];

test('wrong messages do no harm: signals are ignored and shown, updates and queries are refused', async () => {
  const gate = new Gate();
  const run = await begin({ settings: { maxSteps: 2 }, fakes: holdingStep(gate, 2) });
  await soon('step 2', gate.reached);
  const handle = client.workflow.getHandle(run.name);
  for (const [name, args] of wrongSignals) await handle.signal(name, ...args);
  for (const [name, args, said] of wrongUpdates) {
    await assert.rejects(handle.executeUpdate(name, { args: [...args] as never }), (error) => {
      assert.ok(error instanceof WorkflowUpdateFailedError);
      assert.match(error.cause!.message, said, `${name} ${received(args[0])}`);
      return true;
    });
  }
  await assert.rejects(handle.query('events', 'x'), /after: expected a whole number from 0, received "x"/);
  const warnings = await run.told('warning');
  for (const name of new Set(wrongSignals.map(([of]) => of)))
    assert.ok(
      warnings.some((line) => line.startsWith(`the signal ${name} was ignored: `)),
      `${name} is shown`,
    );
  assert.ok(warnings.length <= wrongSignals.length + 1, 'each once');
  assert.match(await run.tell('pause', null), /running → paused: asked to/);
  assert.match(await run.tell('resume'), /paused \(asked to\) → running/);
  gate.open();
  const { step, ledger } = await run.result();
  assert.deepEqual([step, ledger.isSound], [2, true]);
  assert.equal(await taskFailures(run.handle), 0);
});
