import type { RatchetConfig } from '../index.ts';
import { lossTraits } from '../../../core/rl/losses.ts';
import { isByRole, type LossSpec, lossTypeOf } from '../learning.ts';
import { problem, type Relations } from './problem.ts';

/** Relations within [trainer.loss], and of the optimizer. */

type WrittenLoss = Omit<RatchetConfig['trainer']['loss'], 'type'> & Pick<LossSpec, 'type'>;

const at = (key: string) => `trainer.loss.${key}`;

export function* lossRelations(config: RatchetConfig): Relations {
  const { clip_high } = config.trainer;
  const loss = { ...config.trainer.loss, type: lossTypeOf(config) };
  const [low, high] = [loss.clip_low, loss.clip_high ?? clip_high];
  const isClipped = lossTraits(loss.type).bounds === 'clip';
  if (isClipped && high !== undefined && high <= 1) {
    const instead = `for ε = ${high} write ${1 + high}`;
    yield problem([at('clip_high'), 'trainer.clip_high'], 'a number > 1: the largest ratio, 1 + ε', high, instead);
  }
  if (isClipped && low !== undefined && low >= 1)
    yield problem(at('clip_low'), 'a number < 1: the least ratio, 1 − ε', low);
  if (lossTraits(loss.type).bounds === 'cap' && (low ?? 0) !== 0)
    yield problem(at('clip_low'), `nothing: ${loss.type} has no lower clip`, low);
  yield* maskRelations(loss);
  yield* turnRelations(config.trainer.advantage);
  yield* roleRelations(config);
  yield* importRelation('trainer.loss', loss);
}

function* turnRelations({ type, turns, discount }: RatchetConfig['trainer']['advantage']): Relations {
  if (turns !== undefined && type === 'custom') {
    const expected = 'nothing beside type = "custom": its function may give a number for each token itself';
    yield problem(['trainer.advantage.turns', 'trainer.advantage.type'], expected, JSON.stringify(turns));
  }
  if (discount === undefined || turns !== undefined) return;
  const expected = 'turns = "returns" or "process" beside it: without, a rollout has one advantage';
  yield problem(['trainer.advantage.discount', 'trainer.advantage'], expected, discount);
}

/** An advantage by role applies to whole samples, so it has no credit by turns or lengths. */
function* roleRelations({ trainer }: RatchetConfig): Relations {
  const { type, decay, episode_agents: roles, turns } = trainer.advantage;
  const at = 'trainer.advantage';
  const isOf = (key: string, of: string) => `nothing: ${key} is of type = "${of}"`;
  if (decay !== undefined && type !== 'rae') yield problem([`${at}.decay`, at], isOf('decay', 'rae'), decay);
  if (roles !== undefined && type !== 'hierarchical_grpo')
    yield problem([`${at}.episode_agents`, at], isOf('episode_agents', 'hierarchical_grpo'), JSON.stringify(roles));
  if (type === 'hierarchical_grpo' && roles === undefined) {
    const expected = 'episode_agents = ["solver"] beside it: the roles that are compared within their episode';
    yield problem([`${at}.episode_agents`, at], expected, 'nothing');
  }
  const others = {
    [`${at}.turns`]: turns,
    'trainer.length_penalty': trainer.length_penalty,
    'trainer.overlong_penalty': trainer.overlong_penalty,
  };
  for (const [place, value] of Object.entries(others)) {
    if (isByRole({ trainer }) && value !== undefined)
      yield problem(
        [place, at],
        `nothing beside type = "${type}", which knows rewards of agents alone`,
        JSON.stringify(value),
      );
  }
}

function* maskRelations(loss: WrittenLoss): Relations {
  const { type, aggregation, mask_low, mask_high } = loss;
  const { bounds, hasPenalty, capsRatios } = lossTraits(type);
  const others = [
    {
      keys: ['mask_low', 'mask_high'],
      isOfIt: bounds === 'mask' || bounds === 'move',
      expected: 'type = "importance_sampling", "dppo" or "ipo" beside it: no other loss leaves tokens out',
    },
    {
      keys: ['kl_tau'],
      isOfIt: hasPenalty && bounds !== null,
      expected: 'type = "dppo" or "ipo" beside it; of other losses [kl_penalty] has the KL term',
    },
    {
      keys: ['max_ratio'],
      isOfIt: capsRatios,
      expected: 'type = "ipo" or "grpo" beside it; cispo caps its ratios by clip_high',
    },
    {
      keys: ['beta'],
      isOfIt: hasPenalty && bounds === null,
      expected: 'type = "dro" beside it; of other losses [kl_penalty] has a beta',
    },
  ] as const;
  for (const { keys, isOfIt, expected } of others) {
    for (const key of keys) {
      if (loss[key] !== undefined && !isOfIt) yield problem([at(key), at('type')], expected, `type = "${type}"`);
    }
  }
  if (bounds !== 'move' && mask_low !== undefined && mask_high !== undefined && mask_low >= mask_high) {
    const expected = `a number < mask_high (${mask_high}): tokens are kept when mask_low ≤ ratio ≤ mask_high`;
    yield problem([at('mask_low'), at('mask_high')], expected, mask_low);
  }
  const { max_ratio: cap, clip_high: high = 0 } = loss;
  if (type === 'grpo' && cap !== undefined && cap < high) {
    yield problem([at('max_ratio'), at('clip_high')], `at least clip_high (${high}), which it would undercut`, cap);
  }
  if (loss.dr_grpo_tokens !== undefined && aggregation !== 'dr_grpo') {
    const received = aggregation === undefined ? 'nothing' : `aggregation = "${aggregation}"`;
    const expected = 'aggregation = "dr_grpo" beside it: no other divides by it';
    yield problem([at('dr_grpo_tokens'), at('aggregation')], expected, received);
  }
}

/** `import` and a kind of the user's own require each other. */
export function* importRelation(
  table: string,
  { type, import: file }: { readonly type: string; readonly import?: string | undefined },
  own: { readonly key: string; readonly word: string; readonly file?: string } = { key: 'type', word: 'custom' },
): Relations {
  if ((type === own.word) === (file !== undefined)) return;
  const paths = [`${table}.${own.file ?? 'import'}`, `${table}.${own.key}`];
  yield file === undefined
    ? problem(paths, `a file with the code, because ${own.key} is "${own.word}"`, 'nothing')
    : problem(paths, `nothing, or ${own.key} = "${own.word}"`, JSON.stringify(file));
}

/** Refuses settings that the optimizer lacks. */
export function* optimizerRelations({ trainer }: RatchetConfig): Relations {
  const { optimizer: type = 'adamw', momentum, nesterov, decay_matrices_only } = trainer;
  const say = (key: string, expected: string, received: unknown) =>
    problem([`trainer.${key}`, 'trainer.optimizer'], `${expected} of "${type}"`, JSON.stringify(received));
  if (momentum !== undefined && type !== 'muon' && type !== 'sgd')
    yield say('momentum', 'nothing, or optimizer = "muon" or "sgd": there is no momentum', momentum);
  if (nesterov !== undefined && type !== 'sgd')
    yield say('nesterov', 'nothing, or optimizer = "sgd": there is no such step', nesterov);
  if (type === 'sgd' && momentum === 0 && nesterov !== false)
    yield say(
      'nesterov',
      'false beside momentum = 0: without it there is nothing to look ahead along',
      nesterov ?? true,
    );
  if (decay_matrices_only === true && type !== 'adamw')
    yield say('decay_matrices_only', 'false: weight decay spares nothing', true);
}
