import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { RatchetError } from '../../core/errors.ts';
import type { BudgetPrices } from '../../core/rl/budget.ts';
import {
  type BudgetLimits,
  isOver,
  type OverBudget,
  type Reservation,
  unlimited,
} from '../../core/settings/budgets.ts';
import { withinBudget } from '../../core/rl/budget-call.ts';
import { RolloutBudget } from '../../play/budget/rollout-budget.ts';
import { chatPolicy } from '../../play/policy/chat-policy.ts';

const prices: BudgetPrices = {
  policy: { prompt: 1, completion: 10 },
  models: { helper: { prompt: 100, completion: 1_000 } },
};

function budgetOf(limits: Partial<BudgetLimits>): RolloutBudget {
  return new RolloutBudget({ ...unlimited, ...limits }, { shared: [], prices });
}

function taken(answer: Reservation | OverBudget): Reservation {
  assert.ok(!isOver(answer));
  return answer;
}

test('a turn samples as many tokens as are left, and the next one is refused by name', async () => {
  const budget = budgetOf({ tokens: 50 });
  const first = taken(await budget.reserve({ promptTokens: 10, completionTokens: 30 }));
  first.settle({ promptTokens: 10, completionTokens: 5 });
  const second = taken(await budget.reserve({ promptTokens: 20, completionTokens: 30 }));
  assert.deepEqual(second.use, { promptTokens: 20, completionTokens: 15 });
  second.settle(second.use);
  const over = await budget.reserve({ promptTokens: 1, completionTokens: 1 });
  assert.deepEqual(over, {
    over: 'tokens',
    of: 'rollout',
    text: "The rollout's budget of 50 tokens is used up: 50 tokens are used.",
  });
  assert.deepEqual(budget.reached, over);
});

test('two models have two prices, and what is left is told in the units of the file', async () => {
  const budget = budgetOf({ money: 0.01, toolCalls: 3 });
  taken(await budget.reserve({ promptTokens: 100, completionTokens: 40 })).settle({
    promptTokens: 100,
    completionTokens: 40,
  });
  assert.deepEqual(budget.left(), { money: 0.0095, toolCalls: 3 });
  const helper = taken(await budget.reserve({ model: 'helper', promptTokens: 5, completionTokens: 100 }));
  assert.equal(helper.use.completionTokens, 9, 'as many as 0.009 pays for');
  helper.settle();
  assert.deepEqual(budget.left(), { money: 0.0095, toolCalls: 3 }, 'nothing was used');
  await assert.rejects(
    budget.reserve({ model: 'stranger', promptTokens: 1 }),
    /ConfigInvalid: Money is limited, but the price of tokens of stranger is not known: write a \[\[cost.models\]\] with name = "stranger"/,
  );
});

test('a sandbox has as many seconds as are left, at its price, and it is said which limit made them less', async () => {
  const budget = budgetOf({ sandboxS: 100.5, money: 1 });
  const first = taken(await budget.reserve({ sandboxS: 60, money: 0.6 }));
  assert.deepEqual([first.use, first.cut], [{ sandboxS: 60, money: 0.6 }, undefined]);
  first.settle({ sandboxS: 50, money: 0.5 });
  const second = taken(await budget.reserve({ sandboxS: 60, money: 0.3 }));
  assert.deepEqual([second.use, second.cut], [{ sandboxS: 50, money: 0.25 }, 'sandboxS']);
  second.settle();
  const third = taken(await budget.reserve({ sandboxS: 50, money: 1 }));
  assert.deepEqual([third.use, third.cut], [{ sandboxS: 25, money: 0.5 }, 'money']);
  third.settle({ sandboxS: 50.5, money: 0.5 });
  const over = await budget.reserve({ sandboxS: 60 });
  assert.ok(isOver(over) && over.over === 'sandboxS' && over.of === 'rollout');
});

test('a call that failed counts in full, unless its server refused it unseen', async () => {
  const budget = budgetOf({ tokens: 100 });
  const call = { promptTokens: 10, maxTokens: 20, signal: undefined };
  const failing = (error: Error) =>
    withinBudget(
      budget,
      call,
      async () => {
        throw error;
      },
      () => ({}),
    );
  await assert.rejects(failing(new RatchetError('InferenceRejected', 'no such model')));
  assert.equal(budget.left().tokens, 100);
  await assert.rejects(failing(new RatchetError('InferenceUnavailable', 'connection reset')));
  assert.equal(budget.left().tokens, 70);
});

test('a model behind an API that counts its tokens itself is asked within an upper bound of them', async () => {
  const budget = budgetOf({ tokens: 2_000 });
  const asked: unknown[] = [];
  const chat = ({ fields }: { fields: Readonly<Record<string, unknown>> }) => {
    asked.push(fields['max_tokens']);
    return Promise.resolve({
      text: 'yes',
      finishReason: 'stop',
      usage: { promptTokens: 9, completionTokens: 2 },
    } as never);
  };
  const messages = [{ role: 'user', content: 'Is it?' }] as const;
  const policy = chatPolicy({ endpoint: { chat }, fields: { max_tokens: 4_000 }, budget });
  await policy.sample(messages);
  assert.ok((asked[0] as number) < 1_900, 'no more than the budget leaves');
  assert.equal(budget.left().tokens, 2_000 - 11);
  const unbounded = chatPolicy({ endpoint: { chat }, fields: {}, budget });
  await assert.rejects(unbounded.sample(messages), /set max_tokens/);
});

test('whatever a rollout asks for, it never uses more than its limits', async () => {
  const use = fc.record({
    promptTokens: fc.nat(30),
    completionTokens: fc.integer({ min: 1, max: 30 }),
    share: fc.double({ min: 0, max: 1, noNaN: true }),
    isHelper: fc.boolean(),
  });
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 1, max: 300 }),
      fc.integer({ min: 1, max: 40 }),
      fc.array(use),
      async (tokens, cents, uses) => {
        const budget = budgetOf({ tokens, money: cents / 1e4 });
        let [spent, money] = [0, 0];
        for (const { promptTokens, completionTokens, share, isHelper } of uses) {
          const of = isHelper ? { model: 'helper' } : {};
          const answer = await budget.reserve({ promptTokens, completionTokens, ...of });
          if (isOver(answer)) continue;
          const sampled = Math.floor((answer.use.completionTokens ?? 0) * share);
          spent += promptTokens + sampled;
          money += ((promptTokens + sampled * 10) * (isHelper ? 100 : 1)) / 1e6;
          answer.settle({ promptTokens, completionTokens: sampled, ...of });
        }
        assert.ok(spent <= tokens && money <= cents / 1e4 + 1e-9, `${spent} tokens, ${money}`);
      },
    ),
  );
});
