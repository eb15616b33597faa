import { hash32, permutation, randomStream } from '../../backends/environments/kit.ts';

/**
 * The Lantern Isles do not exist, so that a model has to look facts up. The text is ours, under the licence of this
 * project. The seed is fixed, so that all collections are the same.
 */

interface Town {
  readonly name: string;
  readonly island: Island;
  readonly founded: number;
  readonly people: number;
  readonly craft: string;
  readonly dish: string;
}
interface Island {
  readonly name: string;
  readonly areaKm2: number;
  readonly hill: string;
  readonly hillM: number;
  readonly settled: number;
}
interface Person {
  readonly name: string;
  readonly born: number;
  readonly died: number;
  readonly birthplace: Town;
  readonly profession: string;
  readonly instrument: string;
}
interface Ship {
  readonly name: string;
  readonly launched: number;
  readonly yard: Town;
  readonly captain: Person;
  readonly lengthM: number;
  readonly cargo: string;
}
interface Book {
  readonly name: string;
  readonly author: Person;
  readonly year: number;
  readonly subject: string;
  readonly pages: number;
}
interface Bridge {
  readonly name: string;
  readonly town: Town;
  readonly opened: number;
  readonly builder: Person;
  readonly arches: number;
  readonly stone: string;
}
interface Festival {
  readonly name: string;
  readonly town: Town;
  readonly month: string;
  readonly founder: Person;
  readonly custom: string;
}
export interface World {
  readonly islands: readonly Island[];
  readonly towns: readonly Town[];
  readonly people: readonly Person[];
  readonly ships: readonly Ship[];
  readonly books: readonly Book[];
  readonly bridges: readonly Bridge[];
  readonly festivals: readonly Festival[];
}

/** Always the same: later draws do not change earlier ones. */
export function makeWorld(): World {
  const draw = drawing(randomStream('the Lantern Isles'));
  const islands = makeIslands(draw);
  const towns = makeTowns(draw, islands);
  const people = makePeople(draw, towns);
  const ships = makeShips(draw, people, towns);
  const books = makeBooks(draw, people);
  const bridges = makeBridges(draw, people, towns);
  const festivals = makeFestivals(draw, people, towns);
  return { islands, towns, people, ships, books, bridges, festivals };
}

interface Draw {
  readonly between: (from: number, to: number) => number;
  readonly anyOf: <T>(values: readonly T[]) => T;
  /** `count` of all pairs of a first and a second part, none twice. */
  readonly names: (kind: string, firsts: string, seconds: string, count: number, glue: string) => string[];
}

function drawing(random: () => number): Draw {
  const between = (from: number, to: number) => from + Math.floor(random() * (to - from + 1));
  return {
    between,
    anyOf: (values) => values[between(0, values.length - 1)]!,
    names: (kind, firsts, seconds, count, glue) => {
      const [a, b] = [firsts.split(' '), seconds.split(' ')];
      const order = permutation(a.length * b.length, kind);
      return order.slice(0, count).map((i) => `${a[i % a.length]}${glue}${b[Math.floor(i / a.length)]}`);
    },
  };
}

function makeIslands({ between, anyOf, names }: Draw): Island[] {
  return names('island', 'Or Vel Tam Hes Bru Cal Nim', 'sey dray holm mere', 12, '').map((name) => ({
    name,
    areaKm2: between(18, 940),
    hill: `${anyOf('Grey Crow Salt Bell Long Fern Ash'.split(' '))} ${anyOf('Top Fell Brow Crag'.split(' '))} of ${name}`,
    hillM: between(90, 1_240),
    settled: between(610, 990),
  }));
}

function makeTowns({ between, anyOf, names }: Draw, islands: readonly Island[]): Town[] {
  return names(
    'town',
    'Ald Birk Corr Dunn Eld Fenn Gar Hol Kest Lor Mar Pell',
    'wick stow haven ford by port',
    48,
    '',
  ).map((name) => ({
    name,
    island: anyOf(islands),
    founded: between(1_010, 1_590),
    people: between(9, 480) * 100,
    craft: anyOf('rope lace clocks glass paper bells saddles lanterns pottery barrels'.split(' ')),
    dish: `${anyOf('smoked baked pickled stewed'.split(' '))} ${anyOf('eel plums herring chestnuts crab leeks'.split(' '))}`,
  }));
}

function makePeople({ between, anyOf, names }: Draw, towns: readonly Town[]): Person[] {
  return names(
    'person',
    'Ada Bertil Cora Dag Edda Falk Gerd Hanno Ilse Jorun',
    'Amsel Brandt Croft Dorn Eik Flint Grau Holt',
    56,
    ' ',
  ).map((name) => {
    const born = between(1_600, 1_820);
    return {
      name,
      born,
      died: born + between(44, 91),
      birthplace: anyOf(towns),
      profession: anyOf('pilot botanist printer surveyor composer glassblower astronomer physician'.split(' ')),
      instrument: anyOf('fiddle flute drum harp bagpipe viola'.split(' ')),
    };
  });
}

/** A year in a person's working life. */
function workingYear({ born }: Person, { between }: Pick<Draw, 'between'>): number {
  return born + between(24, 43);
}

function makeShips(draw: Draw, people: readonly Person[], towns: readonly Town[]): Ship[] {
  const { between, anyOf, names } = draw;
  return names('ship', 'Brave Silver Patient Northern Merry Quiet', 'Heron Lantern Walrus Star Otter', 24, ' ').map(
    (name) => {
      const captain = anyOf(people);
      return {
        name: `the ${name}`,
        launched: workingYear(captain, draw),
        yard: anyOf(towns),
        captain,
        lengthM: between(19, 64),
        cargo: anyOf('salt timber wool tea copper slate'.split(' ')),
      };
    },
  );
}

function makeBooks(draw: Draw, people: readonly Person[]): Book[] {
  const { between, anyOf, names } = draw;
  return names(
    'book',
    'A_History_of The_Secret_of Letters_on Notes_on In_Praise_of',
    'Tides Moss Bells Winter Maps Bees',
    24,
    ' ',
  ).map((name) => {
    const author = anyOf(people);
    return {
      name: name.replaceAll('_', ' '),
      author,
      year: workingYear(author, draw),
      subject: anyOf('the weather of the isles|the life of fishermen|the old laws|a long illness|the stars'.split('|')),
      pages: between(80, 720),
    };
  });
}

function makeBridges(draw: Draw, people: readonly Person[], towns: readonly Town[]): Bridge[] {
  const { between, anyOf, names } = draw;
  return names('bridge', 'Miller Widow Chain Copper Gull King', 's_Bridge s_Crossing s_Arch', 16, "'").map((name) => {
    const builder = anyOf(people);
    return {
      name: name.replaceAll('_', ' '),
      town: anyOf(towns),
      opened: workingYear(builder, draw),
      builder,
      arches: between(2, 19),
      stone: anyOf('granite basalt sandstone limestone'.split(' ')),
    };
  });
}

function makeFestivals({ anyOf, names }: Draw, people: readonly Person[], towns: readonly Town[]): Festival[] {
  return names('festival', 'Lamp Kite Boat Bread Mask Snow', 'Night Week Fair', 16, ' ').map((name) => {
    const founder = anyOf(people);
    return {
      name: `the ${name}`,
      town: anyOf(towns),
      month: anyOf('January February March April May June July August September October November December'.split(' ')),
      founder,
      custom: anyOf(
        'swim across the harbour|exchange their hats|carry a boat through the streets|write letters to the sea'.split(
          '|',
        ),
      ),
    };
  });
}

/** One of several wordings, chosen by the name. */
export function oneOf(name: string, ways: readonly string[]): string {
  return ways[hash32('way', name, ways[0]!.slice(0, 8)) % ways.length]!;
}
