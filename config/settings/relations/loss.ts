import type { RatchetConfig } from '../index.ts';
import { isByRole, type LossSpec, lossTypeOf } from '../learning.ts';
import { problem, type Relations } from './problem.ts';

/** What [trainer.loss] says, taken together. */

type WrittenLoss = Omit<RatchetConfig['trainer']['loss'], 'type'> & Pick<LossSpec, 'type'>;

const at = (key: string) => `trainer.loss.${key}`;

export function* lossRelations(config: RatchetConfig): Relations {
  const { clip_high } = config.trainer;
  const loss = { ...config.trainer.loss, type: lossTypeOf(config) };
  const [low, high] = [loss.clip_low, loss.clip_high ?? clip_high];
  const isClipped = loss.type === 'grpo' || loss.type === 'gspo';
  if (isClipped && high !== undefined && high <= 1) {
    const instead = `for ε = ${high} write ${1 + high}`;
    yield problem([at('clip_high'), 'trainer.clip_high'], 'a number > 1: the largest ratio, 1 + ε', high, instead);
  }
  if (isClipped && low !== undefined && low >= 1)
    yield problem(at('clip_low'), 'a number < 1: the least ratio, 1 − ε', low);
  if (loss.type === 'cispo' && (low ?? 0) !== 0) yield problem(at('clip_low'), 'nothing: cispo has no lower clip', low);
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

/** An advantage by roles is of samples as they are: of their turns and lengths nothing is said. */
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
  const isTrustRegion = type === 'dppo' || type === 'ipo';
  const others = [
    {
      keys: ['mask_low', 'mask_high'],
      isOfIt: type === 'importance_sampling' || isTrustRegion,
      expected: 'type = "importance_sampling", "dppo" or "ipo" beside it: no other loss leaves tokens out',
    },
    {
      keys: ['kl_tau'],
      isOfIt: isTrustRegion,
      expected: 'type = "dppo" or "ipo" beside it; of other losses [kl_penalty] has the KL term',
    },
    {
      keys: ['max_ratio'],
      isOfIt: type === 'ipo' || type === 'grpo',
      expected: 'type = "ipo" or "grpo" beside it; cispo caps its ratios by clip_high',
    },
    {
      keys: ['beta'],
      isOfIt: type === 'dro',
      expected: 'type = "dro" beside it; of other losses [kl_penalty] has a beta',
    },
  ] as const;
  for (const { keys, isOfIt, expected } of others) {
    for (const key of keys) {
      if (loss[key] !== undefined && !isOfIt) yield problem([at(key), at('type')], expected, `type = "${type}"`);
    }
  }
  if (!isTrustRegion && mask_low !== undefined && mask_high !== undefined && mask_low >= mask_high) {
    const expected = `a number < mask_high (${mask_high}): tokens are kept when mask_low ≤ ratio ≤ mask_high`;
    yield problem([at('mask_low'), at('mask_high')], expected, mask_low);
  }
  if (loss.dr_grpo_tokens !== undefined && aggregation !== 'dr_grpo') {
    const received = aggregation === undefined ? 'nothing' : `aggregation = "${aggregation}"`;
    const expected = 'aggregation = "dr_grpo" beside it: no other divides by it';
    yield problem([at('dr_grpo_tokens'), at('aggregation')], expected, received);
  }
}

/** `import` and a kind of the user's own go together. */
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
