/** Given names and family names, each distinct, common ones of many languages. */
export const givenNames = words(`
  Abel Ada Adil Aida Alan Alba Alma Amir Amy Ana Andre Anna Anton Arda Ari Asha Asta Axel Beata Ben Bela Berit Bianca Boris Bruno Carl
  Carla Carmen Cedric Celia Chen Chloe Clara Clive Cora Cyrus Dana Daniel Dario Dawit Deniz Diana Dina Dora Duc Edgar Edith Efe Elena
  Eli Elif Emil Emma Enzo Erik Esra Esther Eva Ezra Fadi Faye Felix Fiona Flora Frank Freya Gale George Gina Goran Grace Greta Gus
  Hana Hans Hazel Hector Heidi Helen Henry Hugo Ian Ida Igor Ilse Imani Ines Ingrid Iris Ivan Jack Jada Jan Jana Jin Joel Jonas Jorge
  Judith Julia Kai Karin Kate Kenji Kira Klaus Kofi Lars Laura Leila Leo Lena Lin Lisa Livia Louis Lucas Luz Maja Malik Marco Maria
  Marta Maya Mei Mia Milan Mina Mona Nadia Naomi Nils Nina Noah Nora Odette Olaf Olga Omar Oscar Otto Pablo Paul Pedro Petra Pia Quinn
  Rafael Rania Remy Rita Robin Rosa Ruben Ruth Sahar Samir Sara Selma Sofia Stefan Sven Tara Tariq Theo Tim Tina Tomas Ugo Uma Ursula
  Vera Victor Viola Wanda Walter Wei Willa Xavier Xenia Yael Yara Yuki Yusuf Zane Zara Zeno Zoe
`);

export const familyNames = words(`
  Abbott Acosta Adler Aydin Baker Banerjee Bauer Becker Bianchi Blanc Brandt Brown Castro Chang Cohen Conti Costa Cruz Dahl Dalton Das
  Dubois Duran Eklund Ellis Erdem Evans Farah Fischer Foster Fuentes Garcia Gomez Graf Greene Gupta Haas Hansen Haddad Herrera Holm
  Hughes Ibrahim Ito Ivanov Jansen Jensen Jimenez Johnson Kaplan Kaya Keller Khan Kim Kovacs Kumar Lang Larsen Lee Lehmann Lindgren
  Lopez Marino Martin Mehta Meyer Mills Mori Moreau Murphy Nagy Nakamura Navarro Nielsen Novak Nowak Okafor Olsen Ortiz Osman Park
  Patel Peters Petrov Quist Ramos Rao Reyes Ricci Rossi Roux Sato Schmidt Shah Silva Singh Smith Suzuki Tanaka Taylor Thomas Torres
  Turner Ueda Vargas Vidal Vogel Wagner Wang Weber Wilson Wong Wright Yamada Yilmaz Young Zhang Zhou Ziegler
`);

function words(list: string): readonly string[] {
  return list.trim().split(/\s+/);
}
