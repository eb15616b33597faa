import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import fc from 'fast-check';
import { add, amountsOf, countsOf, noCounts } from '../../core/rl/budget.ts';
import { newBudget, withLimits } from '../../core/rl/budget-ledger.ts';
import { type BudgetLimits, type OverBudget, unlimited } from '../../core/settings/budgets.ts';
import { SharedBudget } from '../../play/budget/shared-budget.ts';
import { BudgetLedger } from '../../runs/budgets/budget-ledger.ts';
import type { Store } from '../../store/index.ts';

const times = { lookMs: 2, answerMs: 300 };

test('calls reserve the most they may use, and give back what they did not', async () => {
  const { worker } = budgetOf({ tokens: 100 });
  const one = worker();
  const first = taken(await one.reserve(countsOf({ tokens: 60 })));
  const second = one.reserve(countsOf({ tokens: 60 })); // waits for what the first gives back
  await delay(10);
  first.settle(countsOf({ tokens: 10 }));
  taken(await second).settle(countsOf({ tokens: 60 }));
  const over = await one.reserve(countsOf({ tokens: 60 }));
  assert.deepEqual('over' in over && [over.over, over.of, over.text], [
    'tokens',
    'run',
    "The run's budget of 100 tokens is used up: 70 tokens are used, and the next call may take 60 tokens. Raise budget.tokens.",
  ]);
  taken(await one.reserve(countsOf({ tokens: 30 })));
});

test('a worker gives back what it holds in advance when another one waits', async () => {
  const { worker, ledger } = budgetOf({ tokens: 1_000 });
  const [one, other] = [worker(), worker()];
  const leave = await one.enter();
  taken(await one.reserve(countsOf({ tokens: 100 }))).settle(countsOf({ tokens: 100 }));
  assert.ok((await ledger().newest())!.held.tokens > 0, 'it took more than one call needs');
  taken(await other.reserve(countsOf({ tokens: 900 })));
  await leave();
});

test('a call waits while another worker’s call may give something back, and is refused when none may', async () => {
  const { worker } = budgetOf({ tokens: 100 });
  const [one, other] = [worker(), worker()];
  await one.enter();
  await other.enter();
  const held = taken(await one.reserve(countsOf({ tokens: 80 })));
  let isDone = false;
  const waiting = other.reserve(countsOf({ tokens: 50 })).finally(() => (isDone = true));
  await delay(3 * times.answerMs);
  assert.equal(isDone, false, 'the other worker is at work, however long its call takes');
  held.settle(countsOf({ tokens: 80 }));
  assert.equal('over' in (await waiting), true);
});

test('a sandbox waits for those under way, whose calls go on beside it; it is refused when none gives enough back', async () => {
  const { worker } = budgetOf({ sandboxS: 100, tokens: 100 });
  const [one, other] = [worker(), worker()];
  const under = taken(await one.reserve(countsOf({ sandboxS: 70 })));
  const [own, others] = [one.reserve(countsOf({ sandboxS: 60 })), other.reserve(countsOf({ sandboxS: 60 }))];
  let isDone = false;
  void Promise.race([own, others]).then(() => (isDone = true));
  for (let call = 0; call < 3; call++) {
    taken(await one.reserve(countsOf({ tokens: 20 }))).settle(countsOf({ tokens: 20 }));
    await delay(times.answerMs);
  }
  assert.equal(isDone, false, 'the sandbox that is there may give its seconds back');
  under.settle(countsOf({ sandboxS: 10 }));
  const first = taken(await Promise.race([own, others]));
  first.settle(countsOf({ sandboxS: 60 }));
  const answers = await Promise.all([own, others]);
  assert.equal(answers.filter((answer) => 'over' in answer).length, 1, '30 seconds are left, and 60 are needed');
});

test('what a dead worker held stays used, and nobody waits for it for long', async () => {
  const { worker, mortal, ledger } = budgetOf({ tokens: 100 });
  const one = mortal();
  taken(await one.budget.reserve(countsOf({ tokens: 80 })));
  one.die();
  assert.equal('over' in (await worker().reserve(countsOf({ tokens: 50 }))), true);
  assert.equal((await ledger().newest())!.held.tokens, 80 + 2); // an eighth of the rest in advance
  taken(await worker().reserve(countsOf({ tokens: 18 })));
});

test('nobody waits for a worker whose process is known to have ended', async () => {
  const { worker, mortal, ends } = budgetOf({ tokens: 100 }, { ...times, answerMs: 60_000 });
  const [one, alive] = [mortal(), worker()];
  taken(await one.budget.reserve(countsOf({ tokens: 80 })));
  const waiting = alive.reserve(countsOf({ tokens: 50 }));
  one.die();
  ends.set(one.name, 0);
  assert.equal('over' in (await waiting), true);
});

test('two that wait for what a dead worker held do not put each other off', async () => {
  const { worker, mortal } = budgetOf({ tokens: 100 });
  const dead = mortal();
  taken(await dead.budget.reserve(countsOf({ tokens: 80 })));
  dead.die();
  const answers = await Promise.all([worker(), worker()].map((one) => one.reserve(countsOf({ tokens: 50 }))));
  assert.ok(answers.every((answer) => 'over' in answer));
});

test('what a call takes while its worker gives the rest back is given to nobody else', async () => {
  const { worker, store, ledger } = budgetOf({ tokens: 100 });
  const [one, other] = [worker(), worker()];
  const first = taken(await one.reserve(countsOf({ tokens: 20 })));
  store.delays = [
    { before: 20, after: 0 },
    { before: 1, after: 60 },
  ];
  first.settle(countsOf({ tokens: 20 })); // nobody uses it: it gives back what it has in advance
  const second = one.reserve(countsOf({ tokens: 40 })); // more than that
  await delay(40);
  const third = other.reserve(countsOf({ tokens: 80 }));
  taken(await second).settle(countsOf({ tokens: 40 }));
  assert.equal('over' in (await third), true, '20 and 40 are used');
  const { used, held } = (await ledger().newest())!;
  assert.deepEqual([used.tokens, held.tokens], [60, 0]);
});

test('two that wait for long do not answer each other for ever, and are told what a third one gives back', async () => {
  const { worker, ledger } = budgetOf({ tokens: 100, sandboxS: 100 }, { ...times, answerMs: 100 });
  const [one, two, busy] = [worker(), worker(), worker()];
  await busy.enter();
  const [long, short] = [
    taken(await busy.reserve(countsOf({ tokens: 60 }))),
    taken(await busy.reserve(countsOf({ tokens: 30 }))),
  ];
  const waiting = [one, two].map((each) => each.reserve(countsOf({ tokens: 20 })));
  await delay(300);
  const { entry } = (await ledger().newest())!;
  await delay(1_200);
  const entries = (await ledger().newest())!.entry - entry;
  assert.ok(entries < 30, `${entries} entries while nothing happens`);
  short.settle(countsOf({ tokens: 5 }));
  taken(await Promise.race(waiting));
  long.settle(noCounts);
  for (const answer of await Promise.all(waiting)) taken(answer).settle(noCounts);
});

test('money is counted at the price of each model, and the limit that is reached first counts', async () => {
  const { worker } = budgetOf({ tokens: 1_000, money: 1, toolCalls: 2 });
  const one = worker();
  taken(await one.reserve(countsOf({ tokens: 10, money: 0.9 })));
  const over = (await one.reserve(countsOf({ tokens: 10, toolCalls: 3 }))) as OverBudget;
  assert.equal(over.over, 'toolCalls');
});

test('a limit that a person sets applies to calls from then on', async () => {
  const { worker, ledger } = budgetOf({ tokens: 100 });
  const one = worker();
  taken(await one.reserve(countsOf({ tokens: 90 }))).settle(countsOf({ tokens: 90 }));
  assert.equal('over' in (await one.reserve(countsOf({ tokens: 50 }))), true);
  await ledger().change((state) => withLimits(state, 'a person', { tokens: 200 }));
  taken(await one.reserve(countsOf({ tokens: 50 })));
});

test('wall time counts from the first use, whoever works then', async () => {
  const { worker, ledger } = budgetOf({ wallS: 10 });
  await ledger().change(() => ({ ...newBudget(new Date(Date.now() - 11_000).toISOString()), entry: 1 }));
  const over = (await worker().reserve(countsOf({ tokens: 1 }))) as OverBudget;
  assert.equal(over.over, 'wallS');
});

test('calls of a worker that is cancelled are forgotten', async () => {
  const { worker } = budgetOf({ tokens: 100 });
  const one = worker();
  const first = taken(await one.reserve(countsOf({ tokens: 100 })));
  const cancelled = new AbortController();
  const second = one.reserve(countsOf({ tokens: 100 }), cancelled.signal);
  cancelled.abort(new Error('too old'));
  await assert.rejects(second, /too old/);
  first.settle(noCounts);
  taken(await one.reserve(countsOf({ tokens: 100 })));
});

test('an entry whose answer was lost is neither counted twice nor forgotten', async () => {
  const { worker, ledger, store } = budgetOf({ tokens: 100 });
  const one = worker();
  const leave = await one.enter();
  taken(await one.reserve(countsOf({ tokens: 20 }))).settle(countsOf({ tokens: 20 }));
  store.losesAnswers = 1;
  await assert.rejects(one.reserve(countsOf({ tokens: 40 })), /no answer/);
  taken(await one.reserve(countsOf({ tokens: 40 }))).settle(countsOf({ tokens: 40 }));
  await leave();
  const { used, held } = (await ledger().newest())!;
  assert.deepEqual([used.tokens, held.tokens], [60, 0]);
});

test('whatever workers do, and whenever they die, what is used never exceeds the limits', async () => {
  const call = fc.record({
    worker: fc.nat(3),
    isSandbox: fc.boolean(),
    most: fc.integer({ min: 1, max: 40 }),
    used: fc.nat(40),
    ms: fc.nat(6),
  });
  const deaths = fc.array(fc.record({ worker: fc.nat(3), ms: fc.nat(40) }), { maxLength: 4 });
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 20, max: 400 }),
      fc.array(call, { minLength: 5, maxLength: 60 }),
      deaths,
      fc.boolean(),
      async (limit, calls, kills, isRaised) => {
        const { mortal, ledger } = budgetOf({ tokens: limit, sandboxS: limit, toolCalls: 1_000 });
        const workers = Array.from({ length: 4 }, mortal);
        let raised = limit;
        const spent = { tokens: 0, sandboxS: 0 };
        for (const { worker: at, ms } of kills) {
          setTimeout(() => {
            workers[at]!.die();
            workers[at] = mortal();
          }, ms);
        }
        if (isRaised) {
          setTimeout(() => {
            raised = limit + 50;
            void ledger().change((state) => withLimits(state, 'a person', { tokens: raised, sandboxS: raised }));
          }, 15);
        }
        await Promise.all(
          calls.map(async ({ worker: at, isSandbox, most, used, ms }, i) => {
            const unit = isSandbox ? 'sandboxS' : 'tokens';
            await delay(i % 10);
            const one = workers[at]!;
            const reserving = one.budget.reserve(countsOf({ [unit]: most, toolCalls: 1 }), one.signal);
            const answer = await Promise.race([reserving, one.death]);
            if (answer === null || 'over' in answer) return;
            await delay(ms);
            const count = Math.min(used, most);
            spent[unit] += count; // the server has sampled them, whether or not the worker lives to say so
            assert.ok(spent[unit] <= raised, `${spent[unit]} of ${raised} are used`);
            answer.settle(countsOf({ [unit]: count, toolCalls: 1 }));
          }),
        );
        const state = await ledger().newest();
        if (state === null) return assert.deepEqual(spent, { tokens: 0, sandboxS: 0 }); // all died before their first entry
        const taken = amountsOf(add(state.used, state.held));
        for (const unit of ['tokens', 'sandboxS'] as const) {
          assert.ok(taken[unit] <= raised);
          assert.ok(spent[unit] <= taken[unit], 'nothing that was used is forgotten');
        }
      },
    ),
    // A refusal beside a dead worker takes its time, and each that waits has its own: shrinking would take an hour.
    { numRuns: 25, endOnFailure: true },
  );
});

test('of the sandboxes of a dead worker all comes back that they cannot have used, and what its calls held stays held', async (t) => {
  const clock = t.mock.method(Date, 'now', () => 1_000_000);
  const { worker, mortal, ledger, ends } = budgetOf({ sandboxS: 150, money: 10, tokens: 100 });
  const dead = mortal();
  const sandbox = { sandboxS: 100, money: 6 };
  taken(await dead.budget.reserve(countsOf(sandbox), undefined, 'here'));
  taken(await dead.budget.reserve(countsOf({ tokens: 40, money: 1 })));
  dead.die();
  clock.mock.mockImplementation(() => 1_040_000);
  ends.set(dead.name, 1_030_000);
  const other = worker();
  taken(await other.reserve(countsOf(sandbox), undefined, 'here')).settle(countsOf(sandbox));
  const { used, held } = (await ledger().newest())!;
  const both = amountsOf(add(used, held));
  assert.equal(both.sandboxS, 30 + 100);
  assert.ok(both.money >= 1.8 + 1 + 6 && both.money <= 10, `${both.money}: its call may have cost 1`);
  assert.ok(both.tokens >= 40);
  const elsewhere = mortal();
  taken(await elsewhere.budget.reserve(countsOf({ sandboxS: 20 }), undefined, 'another place'));
  elsewhere.die();
  ends.set(elsewhere.name, 1_040_000);
  assert.equal('over' in (await worker().reserve(countsOf({ sandboxS: 20 }), undefined, 'here')), true, 'its leases are not seen'); // prettier-ignore
});

test('what a sandbox left over and calls of its worker used then does not come back a second time', async (t) => {
  t.mock.method(Date, 'now', () => 1_000_000);
  const { worker, mortal, ends } = budgetOf({ sandboxS: 100, money: 10 });
  const dead = mortal();
  await dead.budget.enter();
  taken(await dead.budget.reserve(countsOf({ sandboxS: 100, money: 10 }), undefined, 'here')).settle(noCounts);
  taken(await dead.budget.reserve(countsOf({ money: 10 })));
  dead.die();
  ends.set(dead.name, 1_000_000);
  assert.equal('over' in (await worker().reserve(countsOf({ money: 1 }))), true, 'its call may have cost all');
});

test('a sandbox waits while one of a dead worker may still be there', async (t) => {
  t.mock.method(Date, 'now', () => 1_000_000);
  const { worker, mortal, ends } = budgetOf({ sandboxS: 100 });
  const dead = mortal();
  taken(await dead.budget.reserve(countsOf({ sandboxS: 80 }), undefined, 'here'));
  dead.die();
  ends.set(dead.name, 'ending');
  let isDone = false;
  const waiting = worker()
    .reserve(countsOf({ sandboxS: 50 }), undefined, 'here')
    .finally(() => (isDone = true));
  await delay(3 * times.answerMs);
  assert.equal(isDone, false, 'a sweep ends it');
  ends.set(dead.name, 1_010_000);
  taken(await waiting);
});

test('whenever workers with sandboxes die, more than the rest of their time never comes back', async (t) => {
  const begunAt = performance.now();
  t.mock.method(Date, 'now', () => Math.round(1e9 + 1e3 * (performance.now() - begunAt))); // a millisecond is a second
  const step = fc.record({
    worker: fc.nat(2),
    isSandbox: fc.boolean(),
    most: fc.integer({ min: 1, max: 40 }),
    ms: fc.nat(30),
  });
  const deaths = fc.array(fc.record({ worker: fc.nat(2), ms: fc.nat(50) }), { minLength: 1, maxLength: 4 });
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 40, max: 200 }),
      fc.array(step, { minLength: 5, maxLength: 40 }),
      deaths,
      async (limit, steps, kills) => {
        const { mortal, worker, ledger, ends } = budgetOf({ sandboxS: limit, money: limit });
        const workers = Array.from({ length: 3 }, mortal);
        const dying = kills.map(async ({ worker: at, ms }) => {
          await delay(ms);
          ends.set(workers[at]!.name, Date.now());
          workers[at]!.die();
          workers[at] = mortal();
        });
        const spent = { sandboxS: 0, money: 0 };
        const spend = (sandboxS: number, money: number): void => {
          spent.sandboxS += sandboxS;
          spent.money += money;
          for (const unit of ['sandboxS', 'money'] as const)
            assert.ok(spent[unit] <= limit + 1e-6, `${spent[unit]} of ${limit} ${unit} are used`);
        };
        await Promise.all(
          steps.map(async ({ worker: at, isSandbox, most, ms }, i) => {
            await delay(2 * (i % 10));
            const one = workers[at]!;
            const needed = isSandbox ? { sandboxS: most, money: most / 2 } : { tokens: 1, money: most / 4 };
            const answer = await Promise.race([one.budget.reserve(countsOf(needed), one.signal, 'here'), one.death]);
            if (answer === null || 'over' in answer) return;
            if (!isSandbox) {
              spend(0, most / 4); // whether or not the worker lives to say so
              await delay(1);
              return answer.settle(countsOf(needed));
            }
            const sinceMs = Date.now();
            await Promise.race([delay(Math.min(ms, most)), one.death]);
            const endedAtMs = Math.min(Number(ends.get(one.name) ?? Infinity), Date.now());
            const seconds = Math.min(most, Math.max(0, endedAtMs - sinceMs) / 1000);
            spend(seconds, seconds / 2);
            answer.settle(countsOf({ sandboxS: seconds, money: seconds / 2 }));
          }),
        );
        await Promise.all(dying);
        await delay(20); // what a dead one had begun to write is there
        const leave = await worker().enter();
        await leave();
        const state = await ledger().newest();
        if (state === null) return assert.deepEqual(spent, { sandboxS: 0, money: 0 }); // all died before their first entry
        const both = amountsOf(add(state.used, state.held));
        for (const unit of ['sandboxS', 'money'] as const) {
          assert.ok(both[unit] <= limit);
          assert.ok(spent[unit] <= both[unit] + 1e-6, `${unit}: ${spent[unit]} were used, ${both[unit]} are counted`);
        }
        const holders = Object.values(state.holders);
        const dead = holders.filter(({ worker: name, sandboxes }) => sandboxes !== undefined && ends.has(name!));
        assert.deepEqual(dead, [], 'nothing of a dead worker waits to come back');
      },
    ),
    { numRuns: 25, endOnFailure: true, examples: [callsWhileAWorkerGivesBack] },
  );
});

/** Its last call waited for ever: what it took was given back by an entry of its worker that was on its way. */
const callsWhileAWorkerGivesBack: [number, SandboxStep[], { worker: number; ms: number }[]] = [
  82,
  (
    [
      [1, false, 40, 24],
      [2, true, 25, 16],
      [2, true, 38, 9],
      [1, false, 12, 22],
      [1, true, 33, 28],
      [2, true, 30, 1],
      [0, false, 6, 22],
      [0, false, 34, 20],
      [2, true, 23, 16],
      [0, true, 16, 16],
      [1, false, 4, 13],
      [0, false, 31, 25],
      [1, false, 24, 3],
      [2, false, 37, 5],
      [2, false, 16, 17],
      [1, true, 9, 29],
      [1, false, 34, 19],
      [0, true, 19, 28],
      [1, false, 32, 21],
    ] as const
  ).map(([worker, isSandbox, most, ms]) => ({ worker, isSandbox, most, ms })),
  [{ worker: 1, ms: 47 }],
];

interface SandboxStep {
  readonly worker: number;
  readonly isSandbox: boolean;
  readonly most: number;
  readonly ms: number;
}

type Answer = Awaited<ReturnType<SharedBudget['reserve']>>;

function taken(answer: Answer): Exclude<Answer, OverBudget> {
  assert.ok(!('over' in answer), 'text' in answer ? answer.text : '');
  return answer;
}

function budgetOf(limits: Partial<BudgetLimits>, ownTimes = times) {
  const store = new SlowStore();
  const ledger = (): BudgetLedger => new BudgetLedger(store as unknown as Store, '');
  /** When all sandboxes of a worker had ended. */
  const ends = new Map<string, number | 'ending'>();
  let workers = 0;
  const worker = (own = store, name = `worker ${++workers}`): SharedBudget =>
    new SharedBudget({
      sandboxes: { place: 'here', worker: name, endOf: async (asked) => ends.get(asked) ?? 'unknown' },
      ledger: new BudgetLedger(own as unknown as Store, ''),
      of: 'run',
      limits: { ...unlimited, ...limits },
      advice: (unit) => `Raise budget.${unit}.`,
      times: ownTimes,
    });
  /** A worker that may die: from then on it writes nothing more, and hears of nothing. */
  const mortal = () => {
    let die: () => void = () => undefined;
    const death = new Promise<null>((resolve) => (die = () => resolve(null)));
    const name = `worker ${++workers}`;
    const budget = worker(new LostStore(store, death) as unknown as SlowStore, name);
    // A call of a dead process waits no more; here its timers would keep this process alive.
    const gone = new AbortController();
    void death.then(() => gone.abort());
    return { budget, name, death, signal: gone.signal, die: () => die() };
  };
  return { store, ledger, worker, mortal, ends };
}

/** A store in memory, whose answers take a moment. */
class SlowStore {
  readonly uri = 'memory:';
  losesAnswers = 0;
  /** Of the next entries, ms: before they are stored, and until their answer comes. */
  delays: { readonly before: number; readonly after: number }[] = [];
  readonly #objects = new Map<string, Uint8Array>();

  async read(key: string): Promise<Uint8Array | null> {
    await Promise.resolve();
    return this.#objects.get(key) ?? null;
  }

  async putIfAbsent(key: string, bytes: Uint8Array) {
    const { before, after } = this.delays.shift() ?? { before: 1, after: 0 };
    await delay(before);
    const known = this.#objects.get(key);
    if (known) return { stored: false, bytes: known };
    this.#objects.set(key, bytes);
    await (after > 0 ? delay(after) : Promise.resolve());
    if (this.losesAnswers-- > 0) throw new Error('no answer');
    return { stored: true, bytes };
  }
}

/** The store as a dead worker's process reaches it: not at all. */
class LostStore {
  readonly uri = 'memory:';
  readonly #store: SlowStore;
  #isLost = false;

  constructor(store: SlowStore, death: Promise<null>) {
    this.#store = store;
    void death.then(() => (this.#isLost = true));
  }

  async read(key: string): Promise<Uint8Array | null> {
    return this.#isLost ? new Promise(() => undefined) : this.#store.read(key);
  }

  async putIfAbsent(key: string, bytes: Uint8Array) {
    return this.#isLost ? new Promise(() => undefined) : this.#store.putIfAbsent(key, bytes);
  }
}
