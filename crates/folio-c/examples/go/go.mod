module folio-example

go 1.19
