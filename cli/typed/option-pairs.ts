import type { CommandUnknownOpts } from '@commander-js/extra-typings';
import { RatchetError } from '../../core/errors.ts';

/** What is typed and then ignored misleads: options that exclude one another, and those that mean nothing without another. */
interface OptionPairs {
  /** By their long names, `--rollout`. */
  readonly apart?: readonly (readonly [string, string])[];
  readonly beside?: readonly (readonly [option: string, needed: string])[];
}

/** Refuses them, with both names, before the command begins. */
export function requirePairs<Typed extends CommandUnknownOpts>(command: Typed, pairs: OptionPairs): Typed {
  const isTyped = (long: string): boolean => {
    const option = command.options.find((each) => each.long === long);
    if (option === undefined) throw new Error(`${command.name()} has no option ${long}`);
    return command.getOptionValueSource(option.attributeName()) === 'cli';
  };
  command.hook('preAction', () => {
    for (const [one, other] of pairs.apart ?? [])
      if (isTyped(one) && isTyped(other))
        throw new RatchetError('ConfigInvalid', `${one} and ${other}: expected one of them, got both. Leave one out.`);
    for (const [option, needed] of pairs.beside ?? [])
      if (isTyped(option) && !isTyped(needed))
        throw new RatchetError('ConfigInvalid', `${option}: expected ${needed} beside it, without which it means nothing. Add that, or leave it out.`); // prettier-ignore
  });
  return command;
}
